"""Several workers serve the same versions: what one of them loads, all of them do."""

import asyncio
import errno
import os
import signal
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

import httpx
import pytest

from sruserve.server.errors import ModelBusy, ModelLoadFailed
from sruserve.server.repository.device import NoMemory
from sruserve.server.repository.fleet import WorkerRefused
from sruserve.server.repository.plan import Plan
from sruserve.server.repository.workers import Workers
from tests.server.metrics.test_served_versions import served
from tests.server.observing import until
from tests.server.processes import Process, is_ready, serving
from tests.server.repository.changing_models import change, classify, save_version

FIRST = {"poems": Plan((("1", "a"),), "1")}
NEXT = Plan((("1", "a"), ("2", "b")), "2")


def workers_of(process: Process) -> list[int]:
    """The process ids of a server's workers: its children that serve."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    commands: dict[int, bytes] = {}
    for pid in children:
        with suppress(OSError):  # it has ended meanwhile
            commands[int(pid)] = Path(f"/proc/{pid}/cmdline").read_bytes()
    return [
        pid for pid, command in commands.items() if command and b"resource_tracker" not in command
    ]


def serving_workers(process: Process) -> list[int]:
    """The workers that have loaded their models."""
    begun = Path(tempfile.gettempdir()).glob("sruserve-metrics-*/models/*.worker")
    loaded = {file.stem for file in begun}
    return [pid for pid in workers_of(process) if str(pid) in loaded]


@contextmanager
def only(pid: int, others: list[int]) -> Iterator[None]:
    """All other workers stand still, so that this one answers."""
    for other in others:
        if other != pid:
            os.kill(other, signal.SIGSTOP)
    try:
        yield
    finally:
        for other in others:
            if other != pid:
                os.kill(other, signal.SIGCONT)


def ask(client: httpx.Client, work: Callable[[httpx.Client], Any]) -> Any:
    """Ask over a new connection, which any worker may accept."""
    with httpx.Client(base_url=client.base_url, timeout=60) as own:
        return work(own)


def listed(client: httpx.Client) -> list[tuple[str, str]]:
    return [(m["id"], m["version"]) for m in client.get("/v1/models").json()["data"]]


def measured(client: httpx.Client) -> dict[str, str]:
    """What each version is for, as the metrics of all workers have it."""
    return {version: state for (version, _), state in served(client, "question").items()}


def by_worker(client: httpx.Client, process: Process, work: Callable[[httpx.Client], Any]) -> Any:
    """What each of two workers answers."""
    pids = workers_of(process)
    assert len(pids) == 2
    answers = []
    for pid in pids:
        with only(pid, pids):
            answers.append(ask(client, work))
    return answers


def test_a_load_reaches_all_workers_and_a_restarted_one_serves_the_same(tmp_path: Path) -> None:
    save_version(tmp_path / "question", 1)
    settings = {
        "workers": "2",
        "model_control": "true",
        "models": str(tmp_path),
        "grpc_port": "off",
    }
    with serving(**settings) as (client, process):
        until(lambda: len(serving_workers(process)) == 2)
        state = classify(client, return_state=True).json()["results"][0]["state"]
        expected = classify(client, state=state).json()["results"]
        save_version(tmp_path / "question", 2)
        assert change(client, "question", "load").status_code == 200
        both = [("question", "2"), ("question@1", "1")]
        assert by_worker(client, process, listed) == [both, both]
        assert by_worker(client, process, measured) == [{"1": "older", "2": "current"}] * 2

        def goes_on(own: httpx.Client) -> Any:
            return classify(own, state=state).json()["results"]

        assert by_worker(client, process, goes_on) == [expected, expected]
        (tmp_path / "question" / "3").mkdir()
        (tmp_path / "question" / "3" / "config.json").write_text("{}")
        assert change(client, "question", "load").status_code == 400
        assert by_worker(client, process, listed) == [both, both]
        rmtree(tmp_path / "question" / "3")
        save_version(tmp_path / "question", 3)  # written, and not loaded
        assert change(client, "question@1", "unload").status_code == 200
        killed, kept = workers_of(process)
        os.kill(killed, signal.SIGKILL)
        until(lambda: killed not in (pids := serving_workers(process)) and len(pids) == 2)
        (new,) = [pid for pid in workers_of(process) if pid != kept]
        with only(new, [new, kept]):
            until(lambda: ask(client, is_ready))
            assert ask(client, listed) == [("question", "2")]
            assert ask(client, measured) == {"2": "current"}


def half_a_split(folder: Path) -> None:
    (folder / "split.json").write_text('{"1": 90, "2": ')


def half_an_upload(folder: Path) -> None:
    (folder / "2" / "model.safetensors").write_bytes(b"half an upload")


def no_folder(folder: Path) -> None:
    rmtree(folder)


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (half_a_split, [("question", "2"), ("question@1", "1")]),
        (half_an_upload, [("question", "1")]),
        (no_folder, []),
    ],
)
def test_no_edit_of_the_folders_keeps_a_restarted_worker_from_serving(
    tmp_path: Path, edit: Callable[[Path], None], expected: list[tuple[str, str]]
) -> None:
    for version in (1, 2):
        save_version(tmp_path / "question", version)
    settings = {"workers": "2", "models": str(tmp_path), "grpc_port": "off"}
    with serving(**settings) as (client, process):
        until(lambda: len(serving_workers(process)) == 2)
        edit(tmp_path / "question")
        killed, kept = workers_of(process)
        os.kill(killed, signal.SIGKILL)
        until(lambda: killed not in (pids := serving_workers(process)) and len(pids) == 2)
        (new,) = [pid for pid in workers_of(process) if pid != kept]
        with only(new, [new, kept]):
            until(lambda: ask(client, is_ready))
            assert ask(client, listed) == expected


class Fake:
    """A worker without models, which notes what it shall do."""

    def __init__(self, folder: Path, name: str) -> None:
        self.workers = Workers(folder, name, retry_seconds=0.01)
        self.done: list[Any] = []
        self.error: Exception | None = None

    async def join(self) -> dict[str, Plan]:
        async with self.workers.joining(lambda: FIRST) as plans:
            self._following = asyncio.create_task(
                self.workers.follow(self._prepare, self._forget, self._apply)
            )
            return dict(plans)

    async def _prepare(self, name: str, weights: str) -> None:
        self.done.append(("prepare", name, weights))
        if self.error is not None:
            raise self.error

    async def _forget(self, name: str) -> None:
        self.done.append(("forget", name))

    def _apply(self, name: str, plan: Plan) -> None:
        self.done.append(("apply", name, plan))

    def leave(self) -> None:
        self._following.cancel()
        self.workers.leave()


def talk(test: Callable[[Fake, Fake], Coroutine[Any, Any, None]], folder: Path) -> None:
    async def run() -> None:
        one, two = Fake(folder, "one"), Fake(folder, "two")
        assert await one.join() == await two.join() == FIRST
        await test(one, two)
        one.leave()
        two.leave()

    asyncio.run(asyncio.wait_for(run(), 60))


async def seen(worker: Fake, *done: Any) -> None:
    while worker.done != list(done):
        await asyncio.sleep(0.01)


def test_a_change_is_prepared_by_all_before_any_makes_it(tmp_path: Path) -> None:
    async def test(one: Fake, two: Fake) -> None:
        async with one.workers.change() as change:
            await change.prepare("poems")
            assert two.done == [("prepare", "poems", "")]
            await change.commit("poems", NEXT)
            await change.finish()
        assert two.done == [("prepare", "poems", ""), ("apply", "poems", NEXT)]
        assert one.done == []
        late = Fake(tmp_path, "three")
        assert await late.join() == {"poems": NEXT}
        late.leave()

    talk(test, tmp_path)


@pytest.mark.parametrize("full", [False, True])
def test_what_one_worker_refuses_none_makes(tmp_path: Path, full: bool) -> None:
    async def test(one: Fake, two: Fake) -> None:
        two.error = ModelLoadFailed("it was not loaded")
        two.error.__cause__ = NoMemory("full") if full else OSError("unreadable")
        with pytest.raises(WorkerRefused, match="it was not loaded") as refused:
            async with one.workers.change() as change:
                await change.prepare("poems")
        assert refused.value.no_memory is full
        await seen(two, ("prepare", "poems", ""), ("forget", "poems"))

    talk(test, tmp_path)


def test_the_change_of_a_worker_that_ends_is_forgotten(tmp_path: Path) -> None:
    async def test(one: Fake, two: Fake) -> None:
        change = one.workers.change()
        await (await change.__aenter__()).prepare("poems")
        one.leave()
        await seen(two, ("prepare", "poems", ""), ("forget", "poems"))

    talk(test, tmp_path)


def test_a_worker_with_states_of_a_version_keeps_it_for_all(tmp_path: Path) -> None:
    async def test(one: Fake, two: Fake) -> None:
        two.error = ModelBusy("it has states that may arrive")
        with pytest.raises(WorkerRefused, match="it has states that may arrive"):
            async with one.workers.change() as change:
                await change.prepare("poems", "a")
        assert two.done[0] == ("prepare", "poems", "a")

    talk(test, tmp_path)


def test_changes_wait_for_each_other_and_nobody_waits_for_one_who_left(tmp_path: Path) -> None:
    async def test(one: Fake, two: Fake) -> None:
        order: list[str] = []

        async def change(worker: Fake, name: str) -> None:
            async with worker.workers.change() as change:
                order.append(f"begin {name}")
                await change.prepare(name)
                await change.commit(name, NEXT)
                await change.finish()
                order.append(f"end {name}")

        await asyncio.gather(change(one, "a"), change(two, "b"))
        assert order in (["begin a", "end a", "begin b", "end b"],
                         ["begin b", "end b", "begin a", "end a"])  # fmt: skip
        two.leave()
        await change(one, "c")

    talk(test, tmp_path)


def test_a_worker_without_the_folder_serves_alone_and_changes_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        workers = Workers(tmp_path / "removed" / "models", "one")
        async with workers.joining(lambda: FIRST) as plans:
            assert plans == FIRST
        with pytest.raises(WorkerRefused, match="cannot agree"):
            async with workers.change():
                pass
        workers.leave()

    asyncio.run(test())


def test_a_folder_that_is_gone_is_logged_once_by_each_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = 0
    look = Workers._look

    async def counted(*arguments: Any) -> None:
        nonlocal looks
        looks += 1
        await look(*arguments)

    monkeypatch.setattr(Workers, "_look", counted)

    async def test(one: Fake, two: Fake) -> None:
        rmtree(tmp_path / "models")
        before = looks
        while looks < before + 10:
            await asyncio.sleep(0.01)

    talk(test, tmp_path / "models")
    messages = [each.message for each in caplog.records if "cannot be followed" in each.message]
    assert len(messages) == 2
    assert "restart the server" in messages[0]


@pytest.mark.parametrize("commits", [False, True])
def test_a_worker_sees_how_the_last_change_ended_before_it_makes_its_own(
    tmp_path: Path, commits: bool
) -> None:
    async def test(one: Fake, two: Fake) -> None:
        own = asyncio.Event()

        async def change_own() -> None:
            async with two.workers.change():
                two.done.append("own")
                await own.wait()

        last = one.workers.change()
        change = await last.__aenter__()
        await change.prepare("poems")
        waiting = asyncio.create_task(change_own())
        await asyncio.sleep(0)
        if commits:
            await change.commit("poems", NEXT)
        one.leave()
        await last.__aexit__(None, None, None)
        expected = ("apply", "poems", NEXT) if commits else ("forget", "poems")
        await seen(two, ("prepare", "poems", ""), expected, "own")
        own.set()
        await waiting

    talk(test, tmp_path)


def test_a_commit_reaches_those_who_look_after_the_next_one(tmp_path: Path) -> None:
    async def test(one: Fake, two: Fake) -> None:
        three = Fake(tmp_path, "three")
        await three.join()
        async with one.workers.change() as change:
            await change.commit("poems", NEXT)
            one.leave()  # nobody has looked yet
        async with two.workers.change() as change:
            await change.commit("verses", NEXT)
            await change.finish()
        await seen(two, ("apply", "poems", NEXT))
        await seen(three, ("apply", "poems", NEXT), ("apply", "verses", NEXT))
        three.leave()

    talk(test, tmp_path)


@pytest.mark.parametrize("full_at", ["prepare", "commit"])
def test_an_answer_for_which_the_disk_had_no_room_is_written_later(
    tmp_path: Path, full_at: str
) -> None:
    async def test(one: Fake, two: Fake) -> None:
        write = two.workers._files._replace
        failed: list[str] = []

        def full_once(name: str, text: str) -> None:
            if not failed:
                failed.append(name)
                raise OSError(errno.ENOSPC, "No space left on device")
            write(name, text)

        async with one.workers.change() as change:
            if full_at == "prepare":
                two.workers._files._replace = full_once  # type: ignore[method-assign]
            await change.prepare("poems")
            if full_at == "commit":
                two.workers._files._replace = full_once  # type: ignore[method-assign]
            await change.commit("poems", NEXT)
            await change.finish()
        assert failed
        assert two.done == [("prepare", "poems", ""), ("apply", "poems", NEXT)]

    talk(test, tmp_path)


def test_a_change_that_cannot_be_stored_is_forgotten_by_all(tmp_path: Path) -> None:
    async def test(one: Fake, two: Fake) -> None:
        def full(*_: Any) -> Path:
            raise OSError(errno.ENOSPC, "No space left on device")

        async with one.workers.change() as change:
            await change.prepare("poems")
            one.workers._files._write = full  # type: ignore[method-assign,assignment]
            one.workers._files._replace = full  # type: ignore[method-assign,assignment]
            with pytest.raises(WorkerRefused, match="could not be stored"):
                await change.commit("poems", NEXT)
        await seen(two, ("prepare", "poems", ""), ("forget", "poems"))

    talk(test, tmp_path)


def test_a_worker_that_starts_prepares_no_change_that_is_over(tmp_path: Path) -> None:
    async def test(one: Fake, two: Fake) -> None:
        async with one.workers.change() as change:
            await change.prepare("poems")
            await change.commit("poems", NEXT)
            await change.finish()
        late = Fake(tmp_path, "late")
        await late.join()
        async with two.workers.change() as change:
            await change.prepare("verses")
        assert late.done[0] == ("prepare", "verses", "")
        late.leave()

    talk(test, tmp_path)
