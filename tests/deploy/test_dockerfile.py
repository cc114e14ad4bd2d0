"""The image has no compiler, does not run as root, and its health check tells the truth."""

import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from sruserve.server.settings import PREFIX, Settings, variable_name

ROOT = Path(__file__).parents[2]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (instruction, arguments), comments dropped and lines joined."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", "", text)
    return [(w[0], w[1]) for line in joined.splitlines() if len(w := line.split(maxsplit=1)) == 2]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of every stage, by its name, each beginning with its FROM."""
    found: dict[str, list[tuple[str, str]]] = {}
    for instruction, arguments in instructions():
        if instruction == "FROM":
            found[arguments.split(" AS ")[1]] = (stage := [])
        if found:
            stage.append((instruction, arguments))
    return found


def only(instruction: str, stage: str = "cpu") -> str:
    (arguments,) = [a for name, a in stages()[stage] if name == instruction]
    return arguments


def test_the_compiler_stays_in_the_first_stage() -> None:
    builder, final = stages().values()
    assert any("gcc" in arguments for _, arguments in builder)
    assert not any(re.search(r"gcc|apt-get|pip", arguments) for _, arguments in final)
    assert only("COPY") == "--from=builder /opt/sruserve /opt/sruserve"


def test_both_stages_run_the_same_python() -> None:
    assert only("FROM", "builder").split()[0] == only("FROM").split()[0] == "${PYTHON_IMAGE}"
    image = next(a for name, a in instructions() if name == "ARG")
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.1[1-9]-slim-[a-z]+", image)


def test_the_final_image_does_not_run_as_root() -> None:
    names = [name for name, _ in stages()["cpu"]]
    assert only("USER") == "10001:10001"
    assert "RUN" not in names[names.index("USER") :]
    assert "--uid 10001" in only("RUN")


def test_the_container_starts_the_server_and_stops_it_gently() -> None:
    assert json.loads(only("ENTRYPOINT")) == ["sruserve"]
    assert json.loads(only("CMD")) == ["serve"]
    assert only("STOPSIGNAL") == "SIGTERM"


def test_the_image_sets_only_settings_that_exist_and_leaves_the_models_unset() -> None:
    given = {pair.split("=")[0] for pair in only("ENV").split() if pair.startswith(PREFIX)}
    assert given == {"SRUSERVE_HOST"}
    assert given <= {variable_name(field) for field in Settings.model_fields}
    assert int(only("EXPOSE")) == Settings.model_fields["port"].default


def test_an_image_without_the_compiled_kernel_is_not_built() -> None:
    """Every line of Python that the build runs must itself be right, so this runs it."""
    commands = [a for name, a in stages()["builder"] if name == "RUN" and "cpu.available()" in a]
    code = commands[0].split('"')[1]
    for available in (True, False):
        stand_in = f"import sruserve.kernels.cpu as cpu; cpu.available = lambda: {available}; "
        done = subprocess.run([sys.executable, "-c", stand_in + code], cwd=ROOT, check=False)
        assert (done.returncode == 0) is available


def test_torch_comes_from_the_chosen_index_and_everything_is_constrained() -> None:
    builder = stages()["builder"]
    installs = [a for name, a in builder if name == "RUN" and "/bin/python install" in a]
    assert ("ARG", 'TORCH_INDEX=""') in builder
    assert all("--constraint constraints.txt" in arguments for arguments in installs)
    (torch,) = [arguments for arguments in installs if arguments.endswith(" torch")]
    assert '${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} --no-deps' in torch


def test_the_build_sees_the_sources_and_nothing_else() -> None:
    rules = (ROOT / ".dockerignore").read_text().split("\n")
    admitted = {rule[1:] for rule in rules if rule.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {"sruserve", "setup.py", "pyproject.toml", "constraints.txt", project["readme"]}
    assert "*" in rules, "everything is kept out that is not named"
    assert admitted == needed | set(project["license-files"])
    assert all((ROOT / name).exists() for name in admitted)


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False), (404, False)])
def test_the_health_check_passes_only_when_the_server_is_ready(status: int, healthy: bool) -> None:
    with answering(status) as port:
        assert health_check(port) is healthy


def test_the_health_check_fails_when_nobody_listens() -> None:
    with answering(200) as port:
        pass
    assert health_check(port) is False


def health_check(port: int) -> bool:
    """Run the image's health check as the container would, through a proxy that does not exist."""
    words = json.loads(only("HEALTHCHECK").split("CMD ", maxsplit=1)[1])
    assert words[0] == "python"
    environment = os.environ | {"SRUSERVE_PORT": str(port), "http_proxy": "http://127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, *words[1:]], env=environment, capture_output=True, timeout=10, check=False
    )
    return done.returncode == 0


@contextmanager
def answering(status: int) -> Iterator[int]:
    """A server that answers `GET /readyz` with `status`, and with 404 all else; yields its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
