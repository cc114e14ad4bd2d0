"""The models of one process: load, replace and unload them while the server runs."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from sruserve.model.errors import ModelError
from sruserve.server.budget import Budget
from sruserve.server.engine.engine import Engine
from sruserve.server.errors import (
    Draining,
    ModelBusy,
    ModelControlRefused,
    ModelLoadFailed,
    ModelNotFound,
    NoProcess,
    ServeError,
    TooManyAtOnce,
)
from sruserve.server.offload import run_in_thread
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.repository.discovery import loadable_models
from sruserve.server.repository.loader import Loader
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.settings import Settings, SettingsError, variable_name
from sruserve.server.unheard import shielded

log = logging.getLogger("sruserve.server")

_MAX_WAITING = 16  # loads and unloads; each takes seconds
_MAX_RETIRING = 4  # engines of one name that finish their requests, each with its memory
_POLL_SECONDS = 0.01  # between two looks at an engine that is stopping


class Repository:
    """Loads, replaces and unloads models. Requests that hold a model keep its engine running.

    unloaded: versions of the unloaded models, by name.
    on_end: called with each engine that has ended while the server runs.
    """

    def __init__(self, settings: Settings) -> None:
        self.catalogue = Catalogue()
        self.unloaded: dict[str, str] = {}
        self.on_end: list[Callable[[Engine], None]] = []
        self._settings = settings
        self._loader: Loader | None = None
        self._one_change = asyncio.Lock()
        self._waiting = Budget(_MAX_WAITING, _too_many_wait)
        self._running: asyncio.Task[None] | None = None
        self._retiring: dict[asyncio.Task[None], ServedModel] = {}
        self._closed = False

    @property
    def engines(self) -> list[Engine]:
        """The engines of all served models, and of unloaded ones that finish their requests."""
        return [served.engine for served in (*self.catalogue.values(), *self._retiring.values())]

    async def open(self, loader: Loader, folders: Sequence[Path]) -> None:
        """Serve the newest version in each of the folders."""
        self._loader = loader
        for folder in folders:
            self.catalogue.put(await run_in_thread("load", partial(loader.load, folder)))

    async def load(self, name: str) -> None:
        """Serve the newest version in a model's folder, and then stop the old one.

        Raises `ModelControlRefused`, `TooManyAtOnce`, `ModelNotFound`, `ModelBusy`,
        `ModelLoadFailed`, `NoProcess` or `Draining`; then the old version stays in service.
        """
        await self._change(partial(self._load, name))

    async def unload(self, name: str) -> None:
        """Take a model out of service; its running requests finish.

        Raises `ModelControlRefused`, `TooManyAtOnce`, `ModelNotFound` or `Draining`.
        """
        await self._change(partial(self._unload, name))

    async def stop(self, timeout_seconds: float) -> None:
        """Drain all engines at the same time, and wait until each has ended."""
        self._closed = True
        engines = self.engines
        for engine in engines:
            engine.drain(timeout_seconds)
        for engine in engines:
            await _end_of(engine)

    def stop_now(self) -> None:
        """End all running requests with their results so far."""
        for engine in self.engines:
            engine.drain(0)

    async def _change(self, change: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run one change at a time, to its end even if its client leaves.

        A change does not run if its client leaves before its turn, or if the server drains.
        Raises `TooManyAtOnce` or `Draining`.
        """
        if not self._settings.model_control:
            raise ModelControlRefused(
                "explicit model load / unload is not allowed: this server loads its models when it "
                f"starts; ask the operator to set {variable_name('model_control')}=true"
            )

        with self._waiting.hold(1):
            await self._one_change.acquire()
        if self._closed:
            self._one_change.release()
            raise _stopping()
        self._running = asyncio.create_task(change())
        self._running.add_done_callback(self._changed)
        await shielded(self._running)

    def _changed(self, task: asyncio.Task[None]) -> None:
        self._running = None  # its error would keep all its frames alive
        self._one_change.release()
        if not task.cancelled() and (error := task.exception()):
            reasons = [str(cause) for cause in (error, error.__cause__) if cause is not None]
            log.warning("models were not changed: %s", ": ".join(reasons))

    async def _load(self, name: str) -> None:
        begin = time.perf_counter()
        if sum(served.name == name for served in self._retiring.values()) >= _MAX_RETIRING:
            raise ModelBusy(
                f"{_MAX_RETIRING} engines of {name[:100]!r} were unloaded and still finish their "
                "requests; retry when some have ended"
            )
        with _explained(name):
            folders = await run_in_thread("load", partial(loadable_models, self._settings))
            folder = folders.get(name)
            if folder is None:
                raise ModelNotFound(f"there is no model folder named {name[:100]!r}", param="model")
            assert self._loader is not None
            now = dict(self.catalogue).get(name)
            served = await run_in_thread("load", partial(self._loader.load, folder, now))
        if self._closed:
            if now is None or served.engine is not now.engine:
                await _stop(served.engine, 0)
            raise _stopping()
        replaced = self.catalogue.put(served)
        self.unloaded.pop(name, None)
        seconds = time.perf_counter() - begin
        log.info("serving version %s of %s (loaded in %.1f s)", served.version, name, seconds)
        if replaced is not None and replaced.engine is not served.engine:
            self._retire(replaced)

    async def _unload(self, name: str) -> None:
        served = self.catalogue.take(name)
        self.unloaded[name] = served.version
        self._retire(served)

    def _retire(self, served: ServedModel) -> None:
        task = asyncio.create_task(self._end(served))
        self._retiring[task] = served
        task.add_done_callback(self._retiring.pop)

    async def _end(self, served: ServedModel) -> None:
        """Stop the engine of a retired model when its last request is done."""
        await served.in_flight.wait_idle()
        if not self._closed:
            await _stop(served.engine, self._settings.drain_seconds)
            for callback in self.on_end:
                callback(served.engine)
            log.info("version %s of %s is unloaded", served.version, served.name)


def _stopping() -> Draining:
    return Draining("the server is stopping, so it loads and unloads no models")


def _too_many_wait() -> TooManyAtOnce:
    return TooManyAtOnce(f"{_MAX_WAITING} loads and unloads of models already wait; retry later")


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Report a failure's kind to the client. Only the log has the reason, with its paths."""
    try:
        yield
    except (ModelNotFound, NoProcess):
        raise
    except (ModelError, ServeError, SettingsError, OSError) as error:
        kind = f" ({error.code})" if isinstance(error, ModelError | ServeError) else ""
        raise ModelLoadFailed(
            f"{name[:100]!r} was not loaded{kind}; the server's log has the reason",
            param="model",
        ) from error


async def _stop(engine: Engine, timeout_seconds: float) -> None:
    engine.drain(timeout_seconds)
    await _end_of(engine)


async def _end_of(engine: Engine) -> None:
    """Wait for an engine without a thread, which the system may refuse while the server stops."""
    while not engine.ended:
        await asyncio.sleep(_POLL_SECONDS)
