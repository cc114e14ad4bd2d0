"""Run the image as in production, look at its confinement from outside, and stop it."""

import json
import resource
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.build_image.build import Store
from deploy.build_image.questions import expect, get
from deploy.build_image.shell import Failed, Shell, mounts_below

USER = 10001
_NAME = _GROUP = "sruserve-proof"
_START_SECONDS = 120
STOP_SECONDS = 35  # as in docker-compose.yml


@dataclass(frozen=True, slots=True)
class Limits:
    """memory: as podman takes it, such as "2g". cpus: a number of cores, such as "1.5"."""

    memory: str
    cpus: str


class Container:
    """A running container of an image, removed at the end of the `with` block.

    port: of HTTP on the loopback interface, which the container shares with the machine.
    """

    def __init__(self, shell: Shell, store: Store, image: str, limits: Limits) -> None:
        self._shell, self._store, self._image, self._limits = shell, store, image, limits
        self._podman = (
            *("podman", *store.options, "--runtime", "runc"),
            *("--cgroup-manager", "cgroupfs", "--events-backend", "none"),
            *("--tmpdir", str(store.work / "podman")),
        )
        self.port, self._grpc_port = _free_ports(2)
        self._pids: set[int] = set()
        self._groups: set[Path] = set()

    def __enter__(self) -> Self:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._shell.run(
            *(*self._podman, "create", "--name", _NAME, "--pull", "never"),
            *("--cgroup-parent", f"/{_GROUP}"),
            *("--read-only", "--tmpfs", "/tmp:size=64m", "--network", "host"),
            *("--cap-drop", "all", "--security-opt", "no-new-privileges"),
            *("--memory", self._limits.memory, "--memory-swap", self._limits.memory),
            *("--cpus", self._limits.cpus, "--pids-limit", "512"),
            *("--ulimit", f"nofile={files}:{files}", "--ulimit", "nproc=4096:4096"),
            *("--env", "SRUSERVE_HOST=127.0.0.1", "--env", f"SRUSERVE_PORT={self.port}"),
            *("--env", f"SRUSERVE_GRPC_PORT={self._grpc_port}", self._image),
        )
        self._begin = time.monotonic()
        self._shell.run(*self._podman, "start", _NAME)
        self._pid = int(self._inspect("{{.State.Pid}}"))
        self._groups = _groups(self._pid)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._shell.say(self.log())
        self._shell.run(*self._podman, "rm", "--force", "--time", "1", _NAME)
        for group in self._groups:
            _remove_group(group.parent)

    def wait_ready(self) -> float:
        """Wait until the server is ready; returns the seconds since the container was started."""
        while time.monotonic() < self._begin + _START_SECONDS:
            try:
                if get(self.port, "/readyz")[0] == 200:
                    return time.monotonic() - self._begin
            except OSError:
                expect(self._inspect("{{.State.Running}}") == "true", f"it ended:\n{self.log()}")
            time.sleep(0.1)
        raise Failed(f"not ready after {_START_SECONDS} s:\n{self.log()}")

    def check_confinement(self) -> None:
        """Check what the kernel says of the server's process: user, rights, files and limits."""
        self._pids = set(_processes(self._groups)) | {self._pid}
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{self._pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        expect(set(status["Uid"].split()) == {str(USER)}, f"user {status['Uid']}")
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            expect(int(status[name], 16) == 0, f"capabilities: {name} {status[name]}")
        expect(status["NoNewPrivs"] == "1" and status["Seccomp"] == "2", "no new privileges")
        root = Path(f"/proc/{self._pid}/root")
        mounts = Path(f"/proc/{self._pid}/mounts").read_text().splitlines()
        (options,) = [words[3] for line in mounts if (words := line.split())[1] == "/"]
        expect("ro" in options.split(","), f"a read-only root: {options}")
        expect(not (root / "usr/bin/gcc").exists(), "no compiler")
        seen = [line for line in self.log().splitlines() if "memory limit" in line]
        expect(bool(seen) and f"CPU limit {self._limits.cpus}" in seen[0], "the limits in the log")
        self._shell.say(
            f"user {USER}, no capabilities, read-only, seccomp, no compiler; limits: memory "
            f"{self._limits.memory}, CPU {self._limits.cpus}"
        )

    def check_health(self) -> None:
        """Run the image's health check in the container, as Docker does."""
        command = json.loads(self._inspect("{{json .Config.Healthcheck.Test}}"))
        expect(command[0] == "CMD", f"a health check: {command}")
        self._shell.run(*self._podman, "exec", _NAME, *command[1:])
        self._shell.say("the image's health check: healthy")

    def describe_memory(self) -> str:
        """The most memory that the server has used."""
        lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        (peak,) = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        return f"memory: at most {int(peak) * 1024 / 1e6:.0f} MB"

    def stop(self) -> float:
        """Stop it as `docker stop` does; returns the seconds. Raises `Failed` unless it exits 0."""
        begin = time.monotonic()
        self._shell.run(*self._podman, "stop", "--time", str(STOP_SECONDS), _NAME)
        seconds = time.monotonic() - begin
        code = self._inspect("{{.State.ExitCode}}")
        expect(code == "0", f"exit code {code} after SIGTERM:\n{self.log()}")
        return seconds

    def check_nothing_left(self) -> None:
        """Check that the container has left nothing on the machine; after the `with` block."""
        expect(not any(Path(f"/proc/{pid}").exists() for pid in self._pids), "no process is left")
        expect(not any(g.parent.exists() for g in self._groups), "no control group is left")
        expect(not mounts_below(self._store.work), "no mount is left")
        for port in (self.port, self._grpc_port):
            with socket.socket() as free:
                free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                free.bind(("127.0.0.1", port))

    def log(self) -> str:
        """What the container has written."""
        return self._shell.output("sh", "-c", '"$@" 2>&1', "log", *self._podman, "logs", _NAME)

    def _inspect(self, template: str) -> str:
        return self._shell.output(*self._podman, "inspect", "--format", template, _NAME)


def _groups(pid: int) -> set[Path]:
    """The control groups of a process that are its container's own, of versions 1 and 2."""
    mounted = Path("/sys/fs/cgroup")
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    entries = [
        (controllers, path) for _, controllers, path in (line.split(":", 2) for line in lines)
    ]
    groups = {
        mounted / folder / path.strip("/")
        for controllers, path in entries
        for folder in (controllers.removeprefix("name="), "unified")
        if _GROUP in path
    }
    return {group for group in groups if group.is_dir()}


def _remove_group(group: Path) -> None:
    """Remove the group in which podman made those of the container and of its own helper."""
    if not group.is_dir():
        return
    for inner in group.iterdir():
        if inner.is_dir():
            inner.rmdir()
    group.rmdir()


def _processes(groups: set[Path]) -> list[int]:
    pids: list[int] = []
    for group in groups:
        pids += map(int, (group / "cgroup.procs").read_text().split())
    return pids


def _free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
