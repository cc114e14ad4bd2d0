"""The models of one process: load, replace and unload their versions while the server runs."""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary

from sruserve.server.budget import Budget
from sruserve.server.clocks import SYSTEM_CLOCKS, Clocks
from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.errors import (
    ModelControlRefused,
    ServeError,
    TooManyAtOnce,
)
from sruserve.server.offload import run_in_thread
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.repository.changes import Changes, stopping
from sruserve.server.repository.discovery import find_models, loadable_models
from sruserve.server.repository.fleet import Alone, Fleet, WorkerRefused
from sruserve.server.repository.loader import Loader
from sruserve.server.repository.local_versions import LocalVersions
from sruserve.server.repository.opening import Opening
from sruserve.server.repository.plan import Plan, plan_at_start
from sruserve.server.repository.retirement import end_of
from sruserve.server.repository.served import Served
from sruserve.server.repository.workers import Workers
from sruserve.server.settings import Settings, SettingsError, variable_name
from sruserve.server.tuning import DEFAULT_TUNING
from sruserve.server.unheard import shielded

log = logging.getLogger("sruserve.server")

_MAX_WAITING = 16  # loads and unloads; each takes seconds
_LOOK_SECONDS = 1.0  # between two looks for versions whose states are over
_AGAIN_SECONDS = 60.0  # before the workers are asked again whether a version is over


class Repository:
    """Loads, replaces and unloads versions. Requests that hold a model keep its engine running.

    shared: a folder of all workers of the server; None: there is only this one.
    unload_seconds: see `Tuning`.
    """

    def __init__(
        self,
        settings: Settings,
        clocks: Clocks = SYSTEM_CLOCKS,
        shared: Path | None = None,
        unload_seconds: float = DEFAULT_TUNING.unload_seconds,
    ) -> None:
        self._settings, self._clock = settings, clocks.monotonic
        self._local = LocalVersions(settings, clocks.epoch)
        self._fleet: Fleet = Alone() if shared is None else Workers(shared)
        self._changes = Changes(settings, self._local, self._fleet, unload_seconds)
        self._one_change = asyncio.Lock()
        self._waiting = Budget(_MAX_WAITING, _too_many_wait)
        self._running: asyncio.Task[None] | None = None
        self._ask_again = WeakKeyDictionary[Served, float]()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def catalogue(self) -> Catalogue:
        """The versions in service."""
        return self._local.catalogue

    @property
    def unloaded(self) -> Mapping[str, tuple[str, str]]:
        """The ids of versions that were unloaded by request, with their name and number."""
        return self._local.unloaded

    @property
    def on_end(self) -> list[Callable[[JobEngine], None]]:
        """Called with each engine that has ended while the server runs."""
        return self._local.on_end

    @property
    def engines(self) -> list[JobEngine]:
        """The engines of all served versions, and of unloaded ones that finish their requests."""
        return self._local.engines

    @property
    def joins(self) -> bool:
        """Whether other workers serve already, so that what is served is decided."""
        return bool(self._fleet.others())

    def folders(self) -> tuple[Path, ...]:
        """The folders of the models to serve; raises `SettingsError`, unless it joins others."""
        return tuple(self._loadable().values()) if self.joins else find_models(self._settings)

    async def open(self, loader: Loader, folders: Sequence[Path]) -> None:
        """Serve the newest versions in each of the folders, as the other workers do.

        Raises `ModelError`, or `SettingsError` such as for two default models of a task.
        """
        self._local.loader = loader
        limit = self._settings.model_versions

        def first() -> dict[str, Plan]:
            return {folder.name: plan_at_start(folder, limit) for folder in folders}

        async with self._fleet.joining(first) as plans:
            by_name = {folder.name: folder for folder in folders}
            if len(plans) > len(by_name) or plans.keys() - by_name.keys():  # loaded meanwhile
                by_name = await run_in_thread("load", self._loadable)
            joins = self.joins
            await Opening(self._settings, self._local, by_name, joins).load(plans)
            if not joins:  # a load has changed what is served, and ends no worker
                self.catalogue.check_defaults()
        self._tasks = [asyncio.create_task(work) for work in (self._end_forever(), self._follow())]

    async def load(self, name: str) -> None:
        """Serve the newest version in a model's folder, and divide new requests as it says.

        Older versions stay until their states can no longer arrive. Raises `ModelControlRefused`,
        `TooManyAtOnce`, `ModelNotFound`, `ModelBusy`, `ModelLoadFailed`, `NoProcess` or `Draining`;
        then what was served stays in service.
        """
        await self._change(partial(self._changes.load, name))

    async def unload(self, name: str) -> None:
        """Take a model, or one version of it, out of service; running requests finish.

        Raises `ModelControlRefused`, `TooManyAtOnce`, `ModelNotFound`, `ModelBusy` or `Draining`.
        """
        await self._change(partial(self._changes.unload, name))

    async def stop(self, timeout_seconds: float) -> None:
        """Drain all engines at the same time, and wait until each has ended."""
        self._changes.closed = True
        self._fleet.leave()
        for task in self._tasks:
            task.cancel()
        engines = self._local.close()
        for engine in engines:
            engine.drain(timeout_seconds)
        for engine in engines:
            await end_of(engine)

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
        if self._changes.closed:
            self._one_change.release()
            raise stopping()
        self._running = asyncio.create_task(change())
        self._running.add_done_callback(self._changed)
        await shielded(self._running)

    def _changed(self, task: asyncio.Task[None]) -> None:
        self._running = None  # its error would keep all its frames alive
        self._one_change.release()
        if not task.cancelled() and (error := task.exception()):
            # its message may have a name that is not served
            reason = error.code if isinstance(error, ServeError) else str(error)
            reasons = [reason, *([str(error.__cause__)] if error.__cause__ is not None else [])]
            log.warning("models were not changed: %s", ": ".join(reasons))

    def _loadable(self) -> dict[str, Path]:
        try:
            return loadable_models(self._settings)
        except (OSError, ValueError, SettingsError) as error:
            log.error("the folders of the models cannot be read: %s", error)
            return {}

    async def _end_forever(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self._end_some()

    async def _end_some(self) -> None:
        """Unload the versions whose states are over. Its frame, which refers to them, ends."""
        for served in [each for each in self.catalogue.every() if self._local.is_over(each)]:
            if self._ask_again.get(served, -math.inf) <= self._clock():
                self._ask_again[served] = self._clock() + _AGAIN_SECONDS
                async with self._one_change:
                    try:
                        await self._changes.end_over(served)
                    except (ServeError, WorkerRefused, OSError) as error:
                        log.error("%s is not unloaded: %s", served.id, error)

    async def _follow(self) -> None:
        """Make the changes of other workers."""
        await self._fleet.follow(self._changes.prepare_for, self._local.forget, self._local.apply)


def _too_many_wait() -> TooManyAtOnce:
    return TooManyAtOnce(f"{_MAX_WAITING} loads and unloads of models already wait; retry later")
