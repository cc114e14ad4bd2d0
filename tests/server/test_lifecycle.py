"""Starting and draining: engines end together, and the process ends whatever becomes of them."""

import asyncio
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sruserve.server.lifecycle import Lifecycle
from sruserve.server.settings import SettingsError, load_settings


class SlowEngine:
    """An engine that takes its time to end, or cannot."""

    def __init__(self, error: Exception | None = None) -> None:
        self.draining, self.may_end, self.error = False, threading.Event(), error

    def drain(self, timeout: float) -> None:
        self.draining = True

    @property
    def ended(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.may_end.is_set()


def serving(engines: list[SlowEngine]) -> Lifecycle:
    lifecycle = Lifecycle(load_settings())
    served: list[Any] = [
        SimpleNamespace(name=str(i), version="1", id=f"{i}@1", engine=e)
        for i, e in enumerate(engines)
    ]
    for each in served:
        lifecycle.catalogue.put(each)
    return lifecycle


def draining(engines: list[SlowEngine], ended: asyncio.Event) -> asyncio.Task[None]:
    """Begin what SIGTERM begins."""
    return asyncio.create_task(serving(engines)._drain_then(ended.set))


def test_all_engines_drain_at_once_and_none_takes_a_thread_from_requests() -> None:
    engines = [SlowEngine() for _ in range(50)]

    async def run() -> None:
        ended = asyncio.Event()
        task = draining(engines, ended)
        await asyncio.sleep(0)
        assert all(engine.draining for engine in engines)
        await asyncio.sleep(0.1)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: 5), 60) == 5
        assert not ended.is_set()
        for engine in engines:
            engine.may_end.set()
        await asyncio.wait_for(task, 60)
        assert ended.is_set()

    asyncio.run(run())


def test_the_process_ends_even_if_an_engine_fails_to(caplog: pytest.LogCaptureFixture) -> None:
    engine = SlowEngine(RuntimeError("broken"))

    async def run() -> None:
        ended = asyncio.Event()
        await asyncio.wait_for(draining([engine], ended), 60)
        assert ended.is_set()

    asyncio.run(run())
    assert "broken" in caplog.text


def test_a_signal_drains_the_server_even_if_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    engine = SlowEngine()

    async def run() -> None:
        ended = asyncio.Event()
        monkeypatch.setattr(threading.Thread, "start", no_more)
        lifecycle, loop = serving([engine]), asyncio.get_running_loop()
        lifecycle._on_signal(loop, lambda *_: ended.set(), signal.SIGTERM, None)
        for _ in range(3):
            await asyncio.sleep(0)
        assert engine.draining
        assert not ended.is_set()
        engine.may_end.set()
        await asyncio.wait_for(ended.wait(), 60)

    asyncio.run(run())
    assert "draining failed" not in caplog.text
    assert "no thread can be started" in caplog.text


def test_too_small_a_pool_is_named_by_its_variable(folders: Path) -> None:
    settings = load_settings(model_folders=(folders / "characters",), state_pool_bytes=1)
    with pytest.raises(SettingsError, match="raise SRUSERVE_STATE_POOL_BYTES above"):
        asyncio.run(Lifecycle(settings).start())
