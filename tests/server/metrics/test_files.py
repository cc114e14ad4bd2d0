"""The files of workers' metrics: nothing is lost, nothing is left, and none has a hole."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector

from sruserve.server.metrics import files as metric_files
from sruserve.server.metrics.files import EndedWorkers, MetricFolder, reading
from tests.server.hand_clock import HandClock

# A worker: it counts `amount` things, of as many names as asked for.
WORKER = """
import os, resource, sys
from pathlib import Path
folder, amount, names = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]), *map(int, sys.argv[1:3])
from sruserve.server.metrics import files as metric_files
metric_files.preallocate_files()
from prometheus_client import Counter, Gauge, Histogram
if len(sys.argv) > 3:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
things = Counter("things", "Things.", ("name",))
sizes = Histogram("sizes", "Sizes.", ("name",), buckets=(1, 2))
live = Gauge("live", "Live.", multiprocess_mode="livesum")
for i in range(names):
    things.labels("n" * 100 + str(i)).inc(amount)
    sizes.labels(str(i)).observe(amount)
live.set(1)
print(os.getpid())
"""


KEY = '["things", "things", {}, "Things."]'  # as prometheus-client writes it


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders of metrics are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def folder(temporary: Path) -> Iterator[Path]:
    made = MetricFolder.make()
    yield made.path
    made.leave()


def work(folder: Path, *arguments: int) -> int:
    """Run a worker to its end; returns its process id."""
    return int(worked(folder, *arguments).stdout)


def worked(folder: Path, *arguments: int) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, "-c", WORKER, *map(str, arguments)],
        env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def samples(folder: Path) -> dict[str, float]:
    """The sums of all workers, by name and the last character of the label `name`."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(folder))  # type: ignore[no-untyped-call]
    return {
        f"{s.name} {s.labels.get('name', '')[-1:]}{s.labels.get('le', '')}": s.value
        for family in registry.collect()
        for s in family.samples
    }


def test_what_ended_workers_counted_stays_in_the_sums_and_their_files_do_not(folder: Path) -> None:
    ended = EndedWorkers(folder)
    for amount in (1, 2, 3):
        work(folder, amount, 2)
    whole = samples(folder)
    assert whole["things_total 0"] == 6
    assert whole["live "] == 3
    for file in folder.glob("counter_*.db"):
        ended.add(int(file.stem.split("_")[1]))
    ended.move()
    del whole["live "]  # nobody lives
    assert samples(folder) == whole
    assert {file.name for file in folder.glob("*.db")} == {
        "counter_ended.db",
        "histogram_ended.db",
    }
    ended.add(work(folder, 10, 2))
    ended.move()
    assert samples(folder)["things_total 0"] == 16
    assert samples(folder)["sizes_bucket 12.0"] == whole["sizes_bucket 12.0"]
    assert len(list(folder.glob("*.db"))) == 2


def test_nothing_is_moved_while_somebody_reads_and_nobody_waits_for_that(folder: Path) -> None:
    ended = EndedWorkers(folder)
    ended.add(work(folder, 1, 1))
    files = sorted(folder.glob("*.db"))
    with reading(folder):
        ended.move()
        assert sorted(folder.glob("*.db")) == files
    ended.move()
    assert len(list(folder.glob("*.db"))) == 2


def test_a_file_that_an_ended_worker_left_broken_is_removed(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pid = work(folder, 1, 1)
    (folder / f"counter_{pid}.db").write_bytes(b"\xff\xff\xff\x7f" * 100)
    ended = EndedWorkers(folder)
    ended.add(pid)
    ended.move()
    assert "some counts of an ended worker are lost" in caplog.text
    assert samples(folder)["sizes_count 0"] == 1
    assert not list(folder.glob(f"*_{pid}.db"))


def test_counts_in_a_folder_that_is_gone_are_given_up_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ended = EndedWorkers(tmp_path / "gone")
    ended.add(1)
    for _ in range(3):
        ended.move()
    assert caplog.text.count("are lost") == 1


def test_a_file_that_somebody_removes_meanwhile_keeps_no_other_from_being_moved(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = [work(folder, 1, 1) for _ in range(2)]
    read = MmapedDict.read_all_values_from_file

    def remove_and_read(file: Path) -> Iterator[tuple[str, float, float, int]]:
        if f"_{pids[0]}." in str(file):
            Path(file).unlink()
        return read(file)  # type: ignore[no-any-return, no-untyped-call]

    monkeypatch.setattr(MmapedDict, "read_all_values_from_file", remove_and_read)
    ended = EndedWorkers(folder)
    for pid in pids:
        ended.add(pid)
    ended.move()
    record_count = len(caplog.records)
    ended.move()
    assert len(caplog.records) == record_count
    assert samples(folder)["things_total 0"] == 1


def test_no_file_has_a_hole_whose_first_write_could_end_the_worker(folder: Path) -> None:
    work(folder, 1, 2000)
    sizes = {file: file.stat() for file in folder.glob("*.db")}
    assert max(stat.st_size for stat in sizes.values()) > 256 << 10, "none has grown"
    for file, stat in sizes.items():
        assert stat.st_blocks * 512 >= stat.st_size, file.name


def test_a_worker_whose_files_cannot_grow_lives_on_and_says_so_once(folder: Path) -> None:
    done = worked(folder, 1, 2000, 256 << 10)  # it prints its process id at its end
    assert samples(folder)["things_total 0"] == 1
    assert done.stderr.count("cannot be written") == 2, "once for each of the files that are full"


def test_a_worker_without_room_for_any_file_counts_in_memory(folder: Path) -> None:
    done = worked(folder, 1, 5, 0)
    assert not list(folder.glob("*.db"))
    assert not list(folder.glob("*.new"))
    assert done.stderr.count("cannot be written") == 3, "once for each of the files"
    assert "TMPDIR" in done.stderr


def test_a_file_that_was_full_gets_the_whole_sum_when_there_is_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandClock()
    full = metric_files._PreallocatedFile(str(folder / "counter_1.db"), clock)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda *_: os.open(folder / "none", os.O_RDONLY))
        assert full.read_value(KEY) == (0.0, 0.0)
        full.write_value(KEY, 1.0, 0.0)
    clock.now += 59
    full.write_value(KEY, 2.0, 0.0)
    assert "things " not in samples(folder), "it is not tried again at once"
    clock.now += 1
    full.write_value(KEY, 3.0, 0.0)
    assert samples(folder)["things "] == 3
    full.close()


@pytest.mark.parametrize("whole", [True, False], ids=["ours", "prometheus-client's"])
def test_a_full_file_system_ends_no_worker(tmp_path: Path, whole: bool) -> None:
    code = WORKER if whole else WORKER.replace("metric_files.preallocate_files()", "")
    in_small_folder = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=400k tmpfs {tmp_path}"
    if subprocess.run([*in_small_folder, mount], capture_output=True, check=False).returncode:
        pytest.skip("may not mount a file system")
    done = subprocess.run(
        [*in_small_folder, mount + ' && exec "$0" "$@"', sys.executable, "-c", code, "1", "2000"],
        env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == (0 if whole else -signal.SIGBUS)


def test_the_folder_of_a_server_that_was_killed_is_removed_by_the_next(temporary: Path) -> None:
    killed = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os; from sruserve.server.metrics.files import MetricFolder;"
            "MetricFolder.make(); os.kill(os.getpid(), 9)",
        ],
        env=os.environ | {"TMPDIR": str(temporary)},
        timeout=300,
        check=False,
    )
    assert killed.returncode == -9
    (left,) = temporary.iterdir()
    living = MetricFolder.make()
    assert not left.exists()
    another = MetricFolder.make()
    assert living.path.exists()
    for each in (living, another):
        each.leave()
    assert not list(temporary.iterdir())


def test_the_last_to_leave_a_folder_removes_it(folder: Path) -> None:
    worker = MetricFolder(folder)
    worker.leave()
    assert folder.exists()
    assert MetricFolder(folder).path == folder


def test_a_folder_is_never_removed_through_a_link(temporary: Path, tmp_path: Path) -> None:
    target = tmp_path / "kept"
    target.mkdir()
    (temporary / "sruserve-metrics-link").symlink_to(target)
    MetricFolder.make().leave()
    assert target.exists()


def test_a_folder_that_another_program_made_is_kept(temporary: Path) -> None:
    (temporary / "sruserve-metrics-and-more").mkdir()
    MetricFolder.make().leave()
    assert [folder.name for folder in temporary.iterdir()] == ["sruserve-metrics-and-more"]


def test_a_folder_that_is_locked_is_somebodys(temporary: Path) -> None:
    left = temporary / "sruserve-metrics-locked"
    left.mkdir()
    (left / "lock").touch()
    lock = os.open(left, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    MetricFolder.make().leave()
    assert left.exists()
    os.close(lock)
    MetricFolder.make().leave()
    assert not left.exists()
