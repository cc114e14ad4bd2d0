"""A worker's descriptors are divided among HTTP, gRPC and all else; a low limit is announced."""

import resource
from pathlib import Path

import pytest

from sruserve.server.file_limits import divide_files, files_refusal, files_warning
from tests.server.processes import limited, preloaded


class Files:
    """The limit of open files of a process, as `resource` shows it."""

    def __init__(self, soft: int, hard: int) -> None:
        self.limits = soft, hard

    def get(self, kind: int) -> tuple[int, int]:
        assert kind == resource.RLIMIT_NOFILE
        return self.limits

    def set(self, kind: int, limits: tuple[int, int]) -> None:
        assert kind == resource.RLIMIT_NOFILE
        self.limits = limits


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    files = Files(1024, 1 << 20)
    monkeypatch.setattr(resource, "getrlimit", files.get)
    monkeypatch.setattr(resource, "setrlimit", files.set)
    return files


@pytest.mark.parametrize(
    ("hard", "limit", "grpc", "connections", "raised"),
    [
        (256, 4096, 128, (128, 64), 256),  # raised to the hard limit, as far as that goes
        (1024, 100, 128, (100, 128), 576),  # no more than is needed
        (1024, 100, 0, (100, 0), 264),
        (1024, 4096, 128, (640, 128), 1024),
        (8192, 4096, 128, (4096, 128), 8192),
        (1024, 4096, 0, (768, 0), 1024),
        (resource.RLIM_INFINITY, 4096, 128, (4096, 128), 8256),
        (resource.RLIM_INFINITY, 4096, 2048, (4096, 2048), 8256),
        (resource.RLIM_INFINITY, 4096, 4096, (4096, 4096), 16_448),
    ],
)
def test_http_and_grpc_leave_a_quarter_of_the_descriptors_for_everything_else(
    files: Files, hard: int, limit: int, grpc: int, connections: tuple[int, int], raised: int
) -> None:
    files.limits = 128, hard
    assert divide_files(limit, grpc) == connections
    assert files.limits == (raised, hard)


@pytest.mark.parametrize("grpc", [128, 0])
@pytest.mark.parametrize("connections", [1, 10, 16, 100, 4096])
def test_a_limit_below_what_the_connections_need_is_announced_with_a_value_that_fits(
    files: Files, connections: int, grpc: int
) -> None:
    files.limits = 65, 65
    reason = files_refusal(connections, grpc) or files_warning(connections, grpc)
    if connections > 1:
        assert "SRUSERVE_MAX_CONNECTIONS" in reason
        value = int(
            reason.partition("raise it to " if "serve" in reason else "limit to ")[2].split()[0]
        )
        files.limits = value - 1, value - 1
        assert files_warning(connections, grpc)
        files.limits = value, value
    assert divide_files(connections, grpc)[0] == connections
    assert not files_refusal(connections, grpc)
    assert not files_warning(connections, grpc)


def test_a_limit_that_leaves_few_connections_is_refused_with_the_least_that_serves(
    files: Files,
) -> None:
    files.limits = 64, 64
    least = int(files_refusal(4096, True).partition("a worker needs ")[2].split()[0])
    files.limits = least - 1, least - 1
    assert f"the limit of open files is {least - 1}" in files_refusal(4096, True)
    files.limits = least, least
    assert not files_refusal(4096, True)
    assert "accepts 16 connections instead" in files_warning(4096, True)
    files.limits = 1024, 1 << 20  # which the server raises by itself
    assert not files_warning(4096, True)


def test_a_server_with_too_few_descriptors_does_not_start(folders: Path) -> None:
    program = limited(resource.RLIMIT_NOFILE, 64)
    process = preloaded(str(folders / "characters"), program=program)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert output.count("\n") == 1
    assert "the limit of open files is 64, and a worker needs 80 to serve at all" in output
