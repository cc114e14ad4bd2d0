"""Grammars take half of the processes that the system lets the server start."""

import resource
from pathlib import Path

import pytest

from sruserve.model.control_groups import SystemFiles
from sruserve.server.process_limits import process_limit
from sruserve.server.tasks.constraint_cache import ConstraintCache


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SystemFiles:
    """A machine without limits: its control groups lie in `cgroup`, the process's are in `proc`."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    return SystemFiles(tmp_path / "proc", tmp_path / "cgroup")


def put(system: SystemFiles, groups: str, limits: dict[str, str]) -> None:
    system.groups.write_text(groups)
    for folder, limit in limits.items():
        path = system.mounted / folder
        path.mkdir(parents=True, exist_ok=True)
        (path / "pids.max").write_text(limit + "\n")


@pytest.mark.parametrize(
    ("groups", "limits", "limit"),
    [
        ("0::/\n", {"": "512"}, 512),
        ("0::/a/b\n", {"": "max", "a": "300", "a/b": "512"}, 300),
        ("0::/../elsewhere\n", {"": "512"}, 512),
        ("1:cpu:/\n8:pids:/docker/1\n", {"pids": "100"}, 100),
        ("0::/a\n", {"a": "max"}, None),
        ("8:pids:/\n", {}, None),
    ],
    ids=["container", "service", "outside", "first version", "no limit", "no file"],
)
def test_the_least_limit_of_the_control_groups_holds(
    system: SystemFiles, groups: str, limits: dict[str, str], limit: int | None
) -> None:
    put(system, groups, limits)
    assert process_limit(system) == limit


def test_the_limit_of_the_user_holds(system: SystemFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (400, 500))
    assert process_limit(system) == 400
    put(system, "0::/\n", {"": "512"})
    assert process_limit(system) == 400


@pytest.mark.parametrize(
    ("startable", "max_threads"), [(None, 64), (512, 64), (512 // 7, 36), (3, 2), (1, 2)]
)
def test_half_of_what_may_be_started_is_left_to_threads(
    startable: int | None, max_threads: int
) -> None:
    assert ConstraintCache(1 << 20, startable=startable).store.max_processes == max_threads
