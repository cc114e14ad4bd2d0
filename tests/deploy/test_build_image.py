"""The program that builds and runs the image without Docker agrees with the Dockerfile.

A whole build takes minutes and needs root; docs/deployment.md has the log of one.
"""

import os
import re
import resource
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.build_image import __main__ as program
from deploy.build_image.bases import Bases
from deploy.build_image.build import TARGET, Store, describe
from deploy.build_image.container import STOP_SECONDS, USER, Container, Limits
from deploy.build_image.questions import ask
from deploy.build_image.shell import Failed, Shell, mounts_below, remove
from deploy.build_image.wheels import for_any_python, sha256, torch_wheel
from sruserve.server.settings import Settings, variable_name
from tests.deploy.test_dockerfile import instructions, last, stages
from tests.server.processes import serving

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVER = COMPOSE["services"]["sruserve"]


class RecordingShell(Shell):
    """Runs nothing, and remembers the commands."""

    def __init__(self, log: Path) -> None:
        super().__init__(log)
        self.commands: list[list[str]] = []

    def run(self, *words: str | Path, environment: dict[str, str] | None = None) -> None:
        self.commands.append([str(word) for word in words])


@pytest.fixture
def shell(tmp_path: Path) -> RecordingShell:
    return RecordingShell(tmp_path / "log")


def values(command: list[str], option: str) -> list[str]:
    """The values that a command gives to an option."""
    return [value for name, value in pairwise(command) if name == option]


@pytest.fixture
def build(shell: RecordingShell, tmp_path: Path) -> list[str]:
    """The command that builds the image."""
    torch = tmp_path / "torch-1+cpu-x.whl"
    torch.write_bytes(b"torch")
    Store(shell, tmp_path).build("python-image", "builder-image", tmp_path, torch)
    (command,) = shell.commands
    return command


def test_every_argument_of_the_build_is_one_of_the_dockerfile(build: list[str]) -> None:
    arguments = dict(value.split("=", 1) for value in values(build, "--build-arg"))
    known = {a.split("=", 1)[0] for name, a in instructions() if name == "ARG"}
    assert arguments.keys() <= known
    assert arguments["PYTHON_IMAGE"] == "python-image"
    assert arguments["BUILDER_IMAGE"] == "builder-image"
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", arguments["TORCH_HASH"])


def test_the_build_has_no_network_and_takes_all_packages_from_the_folder(
    build: list[str], tmp_path: Path
) -> None:
    assert build[:3] == ["unshare", "--net", "buildah"]
    assert "PIP_NO_INDEX=1" in values(build, "--build-arg")
    (context,) = values(build, "--build-context")
    stage, folder = context.split("=")
    assert stage in stages()
    assert Path(folder) == tmp_path
    assert values(build, "--isolation") == ["chroot"]
    assert values(build, "--storage-driver") == ["vfs"]


def test_the_target_is_the_image_of_the_documentation(build: list[str]) -> None:
    assert values(build, "--target") == [TARGET]
    assert TARGET in stages()
    assert values(build, "--format") == ["docker"], "the other format has no health check"


def test_the_builder_has_what_the_dockerfile_would_download_and_the_image_no_compiler() -> None:
    (install,) = [a for n, a in stages()["builder"] if n == "RUN" and "apt-get" in a]
    downloaded = install.split("--no-install-recommends ")[1].split(" &&")[0].split()
    assert set(Bases.BUILDER) == {*Bases.RUNTIME, *downloaded, "python3-pip"}
    assert Bases.RUNTIME == ("python3",)
    assert install.startswith("if ! command -v gcc; then")


@pytest.fixture
def run(shell: RecordingShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command that runs the container."""
    monkeypatch.setattr(Container, "_inspect", lambda *_: str(os.getpid()))
    with Container(shell, Store(shell, tmp_path), "image", Limits("2g", "1.5")):
        pass
    command, start, removal = shell.commands
    assert "start" in start
    assert {"rm", "--force"} <= set(removal)
    return command


def test_the_container_is_as_confined_as_that_of_compose(run: list[str]) -> None:
    assert SERVER["read_only"] is True
    assert "--read-only" in run
    assert values(run, "--cap-drop") == [name.lower() for name in SERVER["cap_drop"]]
    assert values(run, "--security-opt") == ["no-new-privileges"]
    assert SERVER["security_opt"] == ["no-new-privileges:true"]
    assert [v.partition(":")[0] for v in values(run, "--tmpfs")] == ["/tmp"]
    assert values(run, "--pids-limit")[0] in SERVER["pids_limit"]
    assert f"{STOP_SECONDS}s" == SERVER["stop_grace_period"]
    assert "--privileged" not in run


def test_the_container_has_limits_of_memory_without_swap_and_of_cpu(run: list[str]) -> None:
    assert values(run, "--memory") == values(run, "--memory-swap") == ["2g"]
    assert values(run, "--cpus") == ["1.5"]
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert f"nofile={files}:{files}" in values(run, "--ulimit")


def test_the_container_runs_as_the_image_says(run: list[str]) -> None:
    assert "--user" not in run
    assert last("USER") == f"{USER}:{USER}"
    assert run[-1] == "image", "the entry point and the command are the image's own"
    variables = {value.split("=")[0] for value in values(run, "--env")}
    assert variables <= {variable_name(field) for field in Settings.model_fields}


def test_the_questions_are_ones_that_the_server_answers() -> None:
    with serving() as (client, _):
        lines = list(ask(client.base_url.port or 0))
    assert re.fullmatch(r"Who wrote Hamlet\? human, [01]\.\d{4}, in \d+ ms", lines[1])
    assert re.fullmatch(r"a streamed completion: 200 characters in \d+ events", lines[2])
    assert len(lines) == 4


def test_a_server_without_the_bundled_models_does_not_pass(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(ROOT / "sruserve" / "demo" / "question-type", folder)
    with serving(folder) as (client, _), pytest.raises(Failed, match="a model that can generate"):
        list(ask(client.base_url.port or 0))


def test_locked_packages_do_not_depend_on_the_version_of_the_python_that_downloads() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    free = for_any_python(lock)
    assert re.findall(r"^\S+==\S+", free, re.M) == re.findall(r"^\S+==\S+", lock, re.M)
    assert free.count("--hash") == lock.count("--hash")
    markers = re.findall(r"; (.*) \\", free)
    assert not any(re.fullmatch(r"python_full_version \S+ \S+", marker) for marker in markers)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (["torch-2.13.0-cp311-x.whl"], "is not torch's CPU build"),
        ([], "has 0 wheels of torch"),
        (["torch-1+cpu-x.whl", "torch-2+cpu-x.whl"], "has 2 wheels of torch"),
    ],
    ids=["CUDA", "none", "two"],
)
def test_only_one_wheel_of_torchs_cpu_build_is_taken(
    files: list[str], reason: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(Failed, match=re.escape(reason)):
        torch_wheel(tmp_path)


def test_the_hash_is_that_of_the_whole_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a").startswith("ba7816bf8f01cfea")


def test_a_failed_command_is_reported_with_the_end_of_its_output(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "log")
    shell.run("sh", "-c", "seq 100")
    with pytest.raises(Failed) as error:
        shell.run("sh", "-c", "seq 200 300; exit 3")
    lines = str(error.value).splitlines()
    assert lines[0].endswith("exit code 3")
    assert lines[1:] == [str(number) for number in range(271, 301)]


def test_the_work_folder_is_deleted_if_nothing_is_mounted_in_it(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "images").mkdir(parents=True)
    assert remove(work) == []
    assert not work.exists()


def test_a_work_folder_with_a_mount_is_never_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mount may be the machine's own /dev."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setattr("deploy.build_image.shell.mounts_below", lambda _: [f"{work}/dev"])
    assert remove(work) == [f"{work}/dev"]
    assert work.exists()


def test_mounts_are_found_the_deepest_first() -> None:
    points = {line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()}
    mounts = mounts_below(Path("/dev"))
    assert set(mounts) == {point for point in points if point.startswith("/dev/")}
    assert mounts == sorted(mounts, reverse=True)


def test_sizes_are_reported_by_layer() -> None:
    text = describe(3_000_000, [(1_000_000, "/bin/sh"), (2_000_000, "COPY x")])
    assert text.splitlines() == [
        "3 MB in 2 layers:",
        "     1 MB  /bin/sh",
        "     2 MB  COPY x",
    ]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["build_image", *arguments])
    return program.main()


def test_without_root_it_does_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert call(monkeypatch) == 1
    assert "needs root" in capsys.readouterr().err


def test_missing_programs_are_reported_with_their_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool in ("runc", "podman") else tool)
    assert call(monkeypatch) == 1
    assert "apt-get install --no-install-recommends podman runc" in capsys.readouterr().err


def test_a_folder_that_exists_is_never_taken_as_the_work_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", str)
    assert call(monkeypatch, "--work", str(tmp_path)) == 1
    assert "exists: name a folder that does not" in capsys.readouterr().err
    assert tmp_path.exists()


@pytest.mark.parametrize(
    "error", [Failed("broken"), KeyboardInterrupt()], ids=["failure", "Ctrl-C"]
)
def test_a_failure_and_ctrl_c_leave_nothing(
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folders = []

    def fail(_: Any, work: Path) -> None:
        (work / "images").mkdir()
        folders.append(work)
        raise error

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", str)
    monkeypatch.setattr(program, "prove", fail)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert call(monkeypatch) == 1
    assert capsys.readouterr().err.startswith(f"error: {error or 'interrupted'}")
    assert not folders[0].exists()


def test_the_help_teaches() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deploy.build_image", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for package in program.TOOLS.values():
        assert package in done.stdout
    assert "--torch-index ADDRESS" in done.stdout
    assert "6. After SIGTERM the exit code must be 0" in done.stdout


def test_the_guide_shows_how_to_run_it() -> None:
    guide = (ROOT / "docs" / "deployment.md").read_text()
    assert "sudo python3 -m deploy.build_image" in guide
    assert all(package in guide for package in program.TOOLS.values())
