"""The server counts what its container may use of the machine, and says so when it starts."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
import torch

from sruserve.model.control_groups import SystemFiles, own_groups
from sruserve.model.machine import (
    available_memory,
    cpu_limit,
    describe_machine,
    memory_limit,
    usable_cores,
)
from sruserve.server.engine.threads import ThreadPolicy
from sruserve.server.repository.host_memory import host_bytes, memory_warning
from sruserve.server.repository.loader import engine_limits
from sruserve.server.settings import load_settings, worker_threads
from tests.server.observing import until
from tests.server.processes import ended, start
from tests.support import random_model

Files = dict[str, str]
GIB = 1 << 30


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SystemFiles:
    """A machine of 16 cores: its control groups lie in `cgroup`, the process's are in `proc`."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(os, "cpu_count", lambda: 32)
    return SystemFiles(tmp_path / "proc", tmp_path / "cgroup", tmp_path / "meminfo")


def put(system: SystemFiles, groups: str, files: Files) -> None:
    system.groups.write_text(groups)
    for name, content in files.items():
        path = system.mounted / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")


MEMINFO = "MemTotal: 99 kB\nMemAvailable:   7 kB\nSwapFree: 2 kB\n"
FULL = {"memory.max": "9000", "memory.current": "8000"}


@pytest.mark.parametrize(
    ("meminfo", "files", "available"),
    [
        (MEMINFO, {}, 9 << 10),
        (MEMINFO, {"memory.max": "max", "memory.current": "8000"}, 9 << 10),
        (MEMINFO, FULL, 1000),
        (MEMINFO, {**FULL, "memory.stat": "anon 5\ninactive_file 30\nactive_file 4"}, 1034),
        (MEMINFO, {"memory.limit_in_bytes": "50", "memory.usage_in_bytes": "60"}, 0),
        ("", FULL, 1000),
    ],
)
def test_the_available_memory_is_what_machine_and_groups_have_left(
    system: SystemFiles, meminfo: str, files: Files, available: int
) -> None:
    put(system, "0::/\n", files)
    system.memory.write_text(meminfo)
    assert available_memory(system) == available


V1_OUTSIDE = "4:cpu,cpuacct:/docker/1\n5:memory:/docker/1\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "limit", "cores"),
    [
        ("0::/\n", {"cpu.max": "200000 100000"}, 2, 2),
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5, 2),
        ("0::/\n", {"cpu.max": "10000 100000"}, 0.1, 1),
        ("0::/\n", {"cpu.max": "0 100000"}, 0, 1),
        ("0::/\n", {"cpu.max": "6400000 100000"}, 64, 16),
        ("0::/\n", {"cpu.max": "max 100000"}, None, 16),
        ("0::/a/b\n", {"a/b/cpu.max": "800000 100000", "a/cpu.max": "300000 100000"}, 3, 3),
        ("0::/../elsewhere\n", {"cpu.max": "50000 25000"}, 2, 2),
        (
            V1_OUTSIDE,
            {"cpu,cpuacct/cpu.cfs_quota_us": "350000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            3.5,
            4,
        ),
        (
            "1:cpu:/a\n",
            {
                "cpu/a/cpu.cfs_quota_us": "-1",
                "cpu/a/cpu.cfs_period_us": "100000",
                "cpu/cpu.cfs_quota_us": "400000",
                "cpu/cpu.cfs_period_us": "100000",
            },
            4,
            4,
        ),
        ("0::/\n", {"cpu.max": "nonsense"}, None, 16),
        ("0::/\n", {"cpu.max": "100000 0"}, None, 16),
        ("8:cpuset:/\n", {}, None, 16),
    ],
    ids=[
        *(
            "container",
            "part of a core",
            "less than a core",
            "nothing",
            "more than the cores",
            "no limit",
        ),
        *("nested", "outside", "version 1 in a container", "version 1 nested", "no number"),
        *("no period", "no file"),
    ],
)
def test_the_lowest_limit_of_cpu_time_counts_rounded_up(
    system: SystemFiles, groups: str, files: Files, limit: float | None, cores: int
) -> None:
    put(system, groups, files)
    assert cpu_limit(system) == limit
    assert usable_cores(system) == cores


def test_cores_that_the_process_may_not_run_on_do_not_count(
    system: SystemFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(system, "0::/\n", {"cpu.max": "800000 100000"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 7})
    assert usable_cores(system) == 2


def test_a_machine_without_control_groups_has_no_limits(system: SystemFiles) -> None:
    assert (cpu_limit(system), memory_limit(system), usable_cores(system)) == (None, None, 16)


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/\n", {"memory.max": str(GIB)}, GIB),
        ("0::/\n", {"memory.max": "max"}, None),
        ("0::/a\n", {"a/memory.max": "max", "memory.max": "4096"}, 4096),
        (V1_OUTSIDE, {"memory/memory.limit_in_bytes": str(GIB)}, GIB),
        (V1_OUTSIDE, {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
    ids=["container", "no limit", "nested", "version 1", "version 1 without a limit"],
)
def test_the_lowest_memory_limit_counts(
    system: SystemFiles, groups: str, files: Files, limit: int | None
) -> None:
    put(system, groups, files)
    assert memory_limit(system) == limit


def test_one_line_says_what_may_be_used(system: SystemFiles) -> None:
    put(system, "0::/\n", {})
    assert describe_machine(system) == "16 of 32 cores, no CPU limit, no memory limit"
    put(system, "0::/\n", {"cpu.max": "150000 100000", "memory.max": str(3 * GIB // 2)})
    assert describe_machine(system) == "16 of 32 cores, CPU limit 1.5, memory limit 1.5 GiB"


def test_workers_share_the_usable_cores_and_a_setting_wins(system: SystemFiles) -> None:
    put(system, "0::/\n", {"cpu.max": "600000 100000"})
    assert worker_threads(load_settings(), system) == 6
    assert worker_threads(load_settings(workers=4), system) == 1
    assert worker_threads(load_settings(workers=2), system) == 3
    assert worker_threads(load_settings(workers=2, threads=9), system) == 9
    assert engine_limits(load_settings()).threads == usable_cores()


def test_an_engine_without_a_number_of_threads_takes_the_usable_cores(tmp_path: Path) -> None:
    network = random_model(tmp_path / "model").network
    policy = ThreadPolicy(network.weights, network.dtype, 0)
    before = torch.get_num_threads()
    try:
        policy.apply(rows=1 << 40)
        assert torch.get_num_threads() == usable_cores()
        policy.apply(rows=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_a_memory_limit_below_what_the_settings_allow_is_reported_with_a_value_that_fits(
    system: SystemFiles, folders: Path
) -> None:
    models = [folders / "question", folders / "characters"]
    settings = load_settings(workers=2)
    need = host_bytes(settings, models)
    assert need > 2 * GIB + 4 * settings.state_host_bytes
    put(system, "0::/\n", {"memory.max": str(need)})
    assert memory_warning(settings, models, system) == ""
    put(system, "0::/\n", {"memory.max": str(need - 1)})
    advice = memory_warning(settings, models, system)
    assert advice.startswith("under load the server may need ")
    value = int(advice.rpartition("SRUSERVE_STATE_HOST_BYTES=")[2])
    assert settings.state_host_bytes - (1 << 20) <= value < settings.state_host_bytes
    assert not memory_warning(load_settings(workers=2, state_host_bytes=value), models, system)


def test_a_translation_system_keeps_no_states_for_which_it_would_need_memory(
    system: SystemFiles, folders: Path, tmp_path: Path
) -> None:
    translator = tmp_path / "translator"
    translator.mkdir()
    (translator / "config.json").write_text('{"task": "translate"}')
    models, settings = [folders / "question", translator], load_settings()
    need = host_bytes(settings, models)
    alone = host_bytes(settings, models[:1])
    assert need - alone == settings.state_pool_bytes + settings.max_queue_bytes
    put(system, "0::/\n", {"memory.max": str(need - (100 << 20))})
    advice = memory_warning(settings, models, system)
    value = int(advice.rpartition("SRUSERVE_STATE_HOST_BYTES=")[2])
    assert value == settings.state_host_bytes - (100 << 20)  # of the one model that keeps states


def test_a_memory_limit_for_which_no_such_value_fits_names_the_other_settings(
    system: SystemFiles, folders: Path
) -> None:
    put(system, "0::/\n", {"memory.max": str(GIB)})
    advice = memory_warning(load_settings(), [folders / "question"], system)
    assert "memory limit is 1.0 GiB" in advice
    assert "SRUSERVE_STATE_HOST_BYTES=0 and a lower SRUSERVE_WORKERS" in advice


def test_without_a_memory_limit_there_is_no_warning(system: SystemFiles, folders: Path) -> None:
    assert memory_warning(load_settings(workers=256), [folders / "question"], system) == ""


LIMITED = """
import atexit, os, sys
{enter}
from sruserve.cli import main
def say():
    import torch
    print("threads outside steps:", torch.get_num_threads())
atexit.register(say)
main()
"""


def test_a_real_limit_holds_for_the_server_and_its_threads(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a real control group where one can be made, otherwise by the cores of the process."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with half_a_core() as (enter, limit):
        process = start(str(folders / "question"), program=("-c", LIMITED.format(enter=enter)))
        assert process.stdout is not None
        log = ""
        while "ready to serve" not in log:
            log += (line := process.stdout.readline())
            assert line, log
        process.terminate()
        log += ended(process)
    assert re.search(rf"threads for each worker: 1 \(.*{limit}", log), log
    assert "threads outside steps: 1" in log


@contextmanager
def half_a_core() -> Iterator[tuple[str, str]]:
    """A limit, as (a line of Python by which a process enters it, how its log describes it)."""
    group = new_group()
    if group is None:
        core = min(os.sched_getaffinity(0))
        yield f"os.sched_setaffinity(0, {{{core}}})", f"1 of {os.cpu_count()} cores"
        return
    try:
        enter = f"open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
        yield enter, "CPU limit 0.5"
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), 10)
        group.rmdir()


def new_group() -> Path | None:
    """A control group with half a core, in that of this process; None: it may not make any."""
    for own in islice(own_groups("cpu"), 1):
        group = own / f"sruserve-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            return None
        for name, limit in (("cpu.max", "50000 100000"), ("cpu.cfs_quota_us", "50000")):
            if (group / name).exists():
                (group / name).write_text(limit)
                return group
        group.rmdir()
    return None
