"""The images hold what they need, do not run as root, and their health check tells the truth."""

import json
import os
import re
import ssl
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from sruserve.server.settings import PREFIX, Settings, load_settings, variable_name
from tests.server.tls.authority import Authority

ROOT = Path(__file__).parents[2]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (instruction, arguments), comments dropped and lines joined."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", "", text)
    return [(w[0], w[1]) for line in joined.splitlines() if len(w := line.split(maxsplit=1)) == 2]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of every stage, by its name, each beginning with its FROM."""
    instructions_of_stage: dict[str, list[tuple[str, str]]] = {}
    for instruction, arguments in instructions():
        if instruction == "FROM":
            instructions_of_stage[arguments.split(" AS ")[1]] = (stage := [])
        if instructions_of_stage:
            stage.append((instruction, arguments))
    return instructions_of_stage


each_image = pytest.mark.parametrize("target", ["cpu", "gpu"])


def image(target: str) -> list[tuple[str, str]]:
    """All instructions of an image, from its base on, in order."""
    own = stages()[target]
    base = own[0][1].split()[0]
    return (image(base) if base in stages() else []) + own


def last(instruction: str, target: str = "cpu") -> str:
    """What holds in an image: the last of such instructions."""
    return [arguments for name, arguments in image(target) if name == instruction][-1]


def variables(target: str) -> dict[str, str]:
    """What an image sets in the environment."""
    pairs = [a for name, a in image(target) if name == "ENV"]
    return dict(pair.split("=", 1) for pairs_of_line in pairs for pair in pairs_of_line.split())


def test_each_request_to_a_container_has_a_line_unless_a_variable_says_otherwise() -> None:
    for target in ("cpu", "gpu"):
        assert variables(target)["SRUSERVE_ACCESS_LOG"] == "true"


def test_the_image_for_the_cpu_has_no_compiler() -> None:
    assert any("gcc" in arguments for _, arguments in stages()["builder"])
    assert not any(re.search(r"gcc|apt-get|pip", arguments) for _, arguments in image("cpu"))


def test_the_image_for_a_gpu_has_the_compiler_that_triton_needs_and_no_toolkit() -> None:
    (install,) = [a for name, a in image("gpu") if name == "RUN" and "apt-get" in a]
    packages = install.split("--no-install-recommends ")[1].split(" &&")[0].split()
    assert packages == ["gcc", "libc6-dev"]


@each_image
def test_an_image_holds_its_own_environment(target: str) -> None:
    assert last("COPY", target) == f"--from={target}-environment /opt/sruserve /opt/sruserve"


def test_the_image_that_is_built_without_a_target_is_the_one_for_the_cpu() -> None:
    assert list(stages())[-1] == "cpu"


def test_all_stages_run_the_same_python() -> None:
    bases = {name: stage[0][1].split()[0] for name, stage in stages().items()}
    assert bases.pop("wheels") == "scratch", "it is empty unless a folder takes its place"
    assert bases.pop("builder") == "${BUILDER_IMAGE}"
    assert set(bases.values()) - stages().keys() == {"${PYTHON_IMAGE}"}
    image, builder = [a for name, a in instructions() if name == "ARG"][:2]
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.1[1-9]-slim-[a-z]+", image)
    assert builder == "BUILDER_IMAGE=${PYTHON_IMAGE}"


@each_image
def test_an_image_does_not_run_as_root(target: str) -> None:
    assert last("USER", target) == "10001:10001"
    names = [name for name, _ in image(target)]
    users = [i for i, name in enumerate(names) if name == "USER"]
    assert "RUN" not in names[users[-1] :]
    assert any("--uid 10001" in arguments for name, arguments in image(target) if name == "RUN")


def test_the_compiled_kernels_lie_where_the_user_may_write() -> None:
    folder = variables("gpu")["TRITON_CACHE_DIR"]
    (made,) = [a for name, a in image("gpu") if name == "RUN" and folder in a]
    assert f"install --directory --owner 10001 --group 10001 {folder}" in made


def test_the_container_starts_the_server_and_stops_it_gently() -> None:
    for target in ("cpu", "gpu"):
        assert json.loads(last("ENTRYPOINT", target)) == ["sruserve"]
        assert json.loads(last("CMD", target)) == ["serve"]
        assert last("STOPSIGNAL", target) == "SIGTERM"


def test_the_images_set_only_settings_that_exist_and_leave_the_models_unset() -> None:
    cpu, gpu = (
        {name for name in variables(target) if name.startswith(PREFIX)} for target in ("cpu", "gpu")
    )
    assert cpu == {"SRUSERVE_HOST", "SRUSERVE_ACCESS_LOG"}
    assert gpu == {"SRUSERVE_HOST", "SRUSERVE_ACCESS_LOG", "SRUSERVE_DEVICE"}
    assert gpu <= {variable_name(field) for field in Settings.model_fields}
    assert load_settings(device=variables("gpu")["SRUSERVE_DEVICE"]).device == "cuda"
    ports = [Settings.model_fields[name].default for name in ("port", "grpc_port")]
    assert [int(port) for port in last("EXPOSE").split()] == ports


@pytest.mark.parametrize(
    ("target", "lacks"),
    [
        ("cpu", {}),
        ("cpu", {"sruserve.kernels.cpu.library.available": lambda: False}),
        ("gpu", {}),
        ("gpu", {"sruserve.kernels.cpu.library.available": lambda: False}),
        ("gpu", {"torch.version.cuda": None}),
        ("gpu", {"sruserve.kernels.devices.missing_triton": lambda: "no Triton"}),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value) or "nothing",
)
def test_an_image_that_lacks_what_it_runs_with_is_not_built(
    target: str, lacks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line of Python that the build runs must itself be right, so this runs it."""
    stage = stages()[f"{target}-environment"]
    (command,) = [a for name, a in stage if name == "RUN" and "cpu.available()" in a]
    there = {
        "sruserve.kernels.cpu.library.available": lambda: True,
        "torch.version.cuda": "13.0",
        "sruserve.kernels.devices.missing_triton": lambda: "",
    }
    for name, value in (there | lacks).items():
        monkeypatch.setattr(name, value)
    with pytest.raises(SystemExit) as ended:
        exec(command.split('"')[1], {})
    assert bool(ended.value.code) is bool(lacks)


HASHED = "pip --python /opt/sruserve/bin/python install --no-deps --require-hashes --requirement "


def runs(target: str) -> list[str]:
    """The commands of a stage, with single spaces."""
    return [" ".join(a.split()) for name, a in stages()[target] if name == "RUN"]


def test_everything_that_is_installed_has_a_hash_but_torchs_cpu_build() -> None:
    cpu, gpu = runs("cpu-environment"), runs("gpu-environment")
    assert f"else {HASHED}requirements-torch.lock; fi" in cpu[0]
    assert gpu[0].endswith(f"{HASHED}requirements-torch.lock")
    for commands in (cpu, gpu):
        assert commands[1].endswith(f"{HASHED}requirements.lock")
        assert commands[2].endswith("install --no-deps --no-build-isolation --no-index .")
        assert len([c for c in commands if " install " in c]) == 3


@each_image
def test_every_download_may_use_the_folder_of_wheels_alone(target: str) -> None:
    """`--build-context wheels=FOLDER` takes the place of the empty stage of that name."""
    downloads = [c for c in runs(f"{target}-environment") if "--requirement" in c]
    assert len(downloads) == 2
    assert all("--mount=type=bind,from=wheels,target=/wheels " in c for c in downloads)
    builder = dict(a.split("=", 1) for n, a in stages()["builder"] if n == "ARG")
    assert builder == {"PIP_NO_INDEX": '""'}, "an empty variable is none to pip"
    (environment,) = [a for name, a in stages()["builder"] if name == "ENV"]
    assert {"PIP_FIND_LINKS=/wheels", "PIP_NO_INDEX=${PIP_NO_INDEX}"} <= set(environment.split())


INDEX = "https://index.example/cpu"


@pytest.mark.parametrize(
    ("index", "digest"),
    [(INDEX, ""), (INDEX, "sha256:" + "a" * 64), ("", "sha256:" + "a" * 64)],
    ids=["index", "index and hash", "wheel and hash"],
)
def test_torchs_cpu_build_is_the_tested_version_from_the_chosen_place(
    index: str, digest: str, tmp_path: Path
) -> None:
    """The line of shell runs here, with a `pip` that shows what it was given."""
    stage = stages()["cpu-environment"]
    assert {("ARG", 'TORCH_INDEX=""'), ("ARG", 'TORCH_HASH=""')} <= set(stage)
    command = re.sub(r"--mount=\S+ ", "", runs("cpu-environment")[0])
    (tmp_path / "constraints.txt").write_text((ROOT / "constraints.txt").read_text())
    done = subprocess.run(
        ["sh", "-ec", f'pip() {{ echo "$@"; cat torch.txt; }}; {command}'],
        env=os.environ | {"TORCH_INDEX": index, "TORCH_HASH": digest},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    output, line = done.stdout.splitlines()
    place = f"--index-url {index} " if index else ""
    assert output.endswith(f"install {place}--no-deps --requirement torch.txt")
    assert re.fullmatch(r"torch==[\d.]+" + (f" --hash={digest}" if digest else ""), line)


def test_the_image_leaves_out_what_no_server_reads_and_nothing_else(tmp_path: Path) -> None:
    """The line of shell runs here, on a small tree, with a `strip` that tells of its files."""
    (command,) = [c for c in runs("cpu-environment") if "strip" in c]
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    large, small = b"." * (2 << 20), b"."
    kept = {
        "torch/__init__.py": small,
        "torch/bin/torch_shm_manager": small,
        "torch/lib/libtorch_cpu.so": large,
        "torch/testing/__init__.py": small,
        "torch/__pycache__/a.pyc": small,
        "numpy.libs/libopenblas-1.so": large,
        "sympy/core/basic.py": small,
        "sruserve/kernels/cpu/_kernel.so": small,
    }
    left_out = {
        "torch/bin/protoc": small,
        "torch/include/c10/a.h": small,
        "torch/test/a_test": small,
        "torch/fx/passes/tests/__init__.py": small,
        "numpy/_core/tests/data/tests/a.csv": small,
        "sympy/__pycache__/a.pyc": small,
        "sympy/core/__pycache__/basic.pyc": small,
    }
    for name, content in (kept | left_out).items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_bytes(content)
    strip = tmp_path / "strip"
    strip.write_text(
        f'#!/bin/sh\n[ "$1" = --strip-unneeded ] && shift && echo "$@" > {tmp_path}/told\n'
    )
    strip.chmod(0o755)
    subprocess.run(
        ["sh", "-ec", command.replace("/opt/sruserve/lib", str(tmp_path / "lib"))],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=True,
    )
    files = {str(f.relative_to(packages)) for f in packages.rglob("*") if f.is_file()}
    assert files == kept.keys()
    assert (tmp_path / "told").read_text().split() == [str(packages / "torch/lib/libtorch_cpu.so")]


def test_hadolint_finds_nothing() -> None:
    """Its exceptions are in .hadolint.yaml, each with its reason."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "hadolint"), "--no-color", "Dockerfile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_build_sees_the_sources_and_nothing_else() -> None:
    rules = (ROOT / ".dockerignore").read_text().split("\n")
    admitted = {rule[1:] for rule in rules if rule.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {"sruserve", "setup.py", "pyproject.toml", "constraints.txt", "README.md"}
    needed |= {"requirements.lock", "requirements-torch.lock"}
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


def test_the_health_check_asks_a_server_with_tls_and_knows_no_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.sign()
    with answering(200, tmp_path) as port:
        assert health_check(port, SRUSERVE_TLS_CERT="server.pem") is True
        assert health_check(port) is False


def health_check(port: int, **variables: str) -> bool:
    """Run the image's health check as the container would, through a proxy that does not exist."""
    words = json.loads(last("HEALTHCHECK").split("CMD ", maxsplit=1)[1])
    assert words[0] == "python"
    environment = os.environ | {"SRUSERVE_PORT": str(port), "http_proxy": "http://127.0.0.1:1"}
    environment |= variables
    done = subprocess.run(
        [sys.executable, *words[1:]], env=environment, capture_output=True, timeout=300, check=False
    )
    return done.returncode == 0


@contextmanager
def answering(status: int, tls: Path | None = None) -> Iterator[int]:
    """A server that answers `GET /readyz` with `status`, and with 404 all else; yields its port.

    tls: the folder of its certificate.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls / "server.pem", tls / "server.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
