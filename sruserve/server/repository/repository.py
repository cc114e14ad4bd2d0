"""The models of one process: load, replace and unload their versions while the server runs."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from sruserve.model.errors import FolderError, ModelError
from sruserve.model.versions import VERSION_MARK
from sruserve.server.budget import Budget
from sruserve.server.clocks import SYSTEM_CLOCKS, Clocks
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
from sruserve.server.metrics.metrics import version_metrics
from sruserve.server.offload import run_in_thread
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.repository.device import NoMemory
from sruserve.server.repository.discovery import find_models, loadable_models
from sruserve.server.repository.fleet import Alone, Change, Fleet, WorkerRefused
from sruserve.server.repository.loader import Loader
from sruserve.server.repository.plan import Plan, pair_of, plan_at_start, wanted
from sruserve.server.repository.retirement import Retirement, end_of, stop_engine
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.repository.workers import Workers
from sruserve.server.settings import Settings, SettingsError, variable_name
from sruserve.server.unheard import shielded

log = logging.getLogger("sruserve.server")

_MAX_WAITING = 16  # loads and unloads; each takes seconds
_MAX_RETIRING = 4  # engines of one name that finish their requests, each with its memory
_LOOK_SECONDS = 1.0  # between two looks for versions whose states are over
_STOP_SECONDS = 5.0  # for an engine whose requests have ended
_AGAIN_SECONDS = 60.0  # before the workers are asked again whether a version is over


class Repository:
    """Loads, replaces and unloads versions. Requests that hold a model keep its engine running.

    shared: a folder of all workers of the server; None: there is only this one.
    unloaded: the ids of versions that were unloaded by request, with their name and number.
    """

    def __init__(
        self, settings: Settings, clocks: Clocks = SYSTEM_CLOCKS, shared: Path | None = None
    ) -> None:
        self.catalogue = Catalogue()
        self.unloaded: dict[str, tuple[str, str]] = {}
        self._settings, self._clock = settings, clocks.epoch
        self._retirement = Retirement(settings.drain_seconds, self._count)
        self._loader: Loader | None = None
        self._fleet: Fleet = Alone() if shared is None else Workers(shared)
        self._prepared: dict[str, list[ServedModel]] = {}
        self._one_change = asyncio.Lock()
        self._waiting = Budget(_MAX_WAITING, _too_many_wait)
        self._running: asyncio.Task[None] | None = None
        self._ask_again: dict[ServedModel, float] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    @property
    def on_end(self) -> list[Callable[[Engine], None]]:
        """Called with each engine that has ended while the server runs."""
        return self._retirement.on_end

    @property
    def engines(self) -> list[Engine]:
        """The engines of all served versions, and of unloaded ones that finish their requests."""
        engines = dict.fromkeys(served.engine for served in self.catalogue.every())
        return [*engines, *self._retirement.engines]

    @property
    def joins(self) -> bool:
        """Whether other workers serve already, so that what is served is decided."""
        return bool(self._fleet.others())

    def folders(self) -> tuple[Path, ...]:
        """The folders of the models to serve; raises `SettingsError`, unless it joins others."""
        return tuple(self._loadable().values()) if self.joins else find_models(self._settings)

    async def open(self, loader: Loader, folders: Sequence[Path]) -> None:
        """Serve the newest versions in each of the folders, as the other workers do."""
        self._loader = loader
        limit = self._settings.model_versions

        def first() -> dict[str, Plan]:
            return {folder.name: plan_at_start(folder, limit) for folder in folders}

        async with self._fleet.joining(first) as plans:
            by_name = {folder.name: folder for folder in folders}
            if len(plans) > len(by_name) or plans.keys() - by_name.keys():  # loaded meanwhile
                by_name = await run_in_thread("load", self._loadable)
            served = {name: plan for name, plan in plans.items() if plan.versions}
            for needed in (True, False):  # no older version takes the memory of a needed one
                for name, plan in served.items():
                    await self._open(name, by_name.get(name), plan, needed)
            for name, plan in served.items():
                self._arrange(name, plan)
        self._tasks = [asyncio.create_task(work) for work in (self._end_forever(), self._follow())]

    async def load(self, name: str) -> None:
        """Serve the newest version in a model's folder, and divide new requests as it says.

        Older versions stay until their states can no longer arrive. Raises `ModelControlRefused`,
        `TooManyAtOnce`, `ModelNotFound`, `ModelBusy`, `ModelLoadFailed`, `NoProcess` or `Draining`;
        then what was served stays in service.
        """
        await self._change(partial(self._load, name))

    async def unload(self, name: str) -> None:
        """Take a model, or one version of it, out of service; running requests finish.

        Raises `ModelControlRefused`, `TooManyAtOnce`, `ModelNotFound`, `ModelBusy` or `Draining`.
        """
        await self._change(partial(self._unload, name))

    async def stop(self, timeout_seconds: float) -> None:
        """Drain all engines at the same time, and wait until each has ended."""
        self._closed = self._retirement.closed = True
        self._fleet.leave()
        for task in self._tasks:
            task.cancel()
        engines = self.engines
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

    async def _open(self, name: str, folder: Path | None, plan: Plan, needed: bool) -> None:
        """Load the versions of a model that new requests need, or the others, at the start.

        One that cannot be loaded is left out if it is an older one, or if other workers have loaded
        it before, because its folder was changed meanwhile.
        """
        assert self._loader is not None
        numbers = dict(plan.versions)  # of two with a number, the folder has the later one
        fails = needed and plan.is_first and not self.joins
        for number in numbers:
            if (number in (plan.current, *plan.split)) is not needed:
                continue
            versions = self.catalogue.find(name)
            resident = versions.all if versions is not None else []
            try:
                if folder is None:
                    raise FolderError("its folder was removed")
                load = partial(self._loader.load, folder, number, resident)
                self.catalogue.put(await run_in_thread("load", load))
            except (ModelError, SettingsError) as error:
                if fails or (needed and plan.is_first and isinstance(error, NoMemory)):
                    raise
                log.error("version %s of %s is not served: %s", number, name, error)

    def _arrange(self, name: str, plan: Plan) -> None:
        """Put the versions that were loaded at the start in the order of the plan."""
        versions = self.catalogue.find(name)
        if versions is None:
            return
        numbered = versions.numbered
        current = plan.current if plan.current in numbered else max(numbered, key=int)
        for number in dict(plan.versions):
            if number in numbered:
                self.catalogue.put(numbered[number], current=number == current)
        self.catalogue.divide(name, {n: w for n, w in plan.split.items() if n in numbered})
        self._count(name)

    async def _load(self, name: str) -> None:
        with _explained(name):
            async with self._fleet.change() as change:
                while True:
                    try:
                        plan = await self._prepared_by_all(change, name)
                        break
                    except _Full:
                        await self._make_room(change, name)
                try:
                    await self._make(change, name, plan)
                except BaseException:
                    await self._forget_prepared(name)
                    raise

    async def _prepared_by_all(self, change: Change, name: str) -> Plan:
        """Load what a load needs, here and in all workers; returns the plan."""
        try:
            plan = await self._prepare(name)
            await change.prepare(name)
        except (NoMemory, WorkerRefused) as error:
            await self._forget_prepared(name)
            versions = self.catalogue.find(name)
            if error.no_memory and versions is not None and versions.older:
                raise _Full from error
            raise
        except BaseException:
            await self._forget_prepared(name)
            raise
        if self._closed:
            await self._forget_prepared(name)
            raise _stopping()
        return plan

    async def _prepare(self, name: str) -> Plan:
        """Load the versions that a load needs, so that states reach them; returns the plan."""
        begin = time.perf_counter()
        await self._forget_prepared(name)  # what an earlier change may have left
        if self._retirement.count(name) >= _MAX_RETIRING:
            raise ModelBusy(
                f"{_MAX_RETIRING} engines of {name[:100]!r} were unloaded and still finish their "
                "requests; retry when some have ended"
            )
        folders = await run_in_thread("load", partial(loadable_models, self._settings))
        folder = folders.get(name)
        if folder is None:
            raise ModelNotFound(f"there is no model folder named {name[:100]!r}", param="model")
        newest, split = wanted(folder, self._settings.model_versions)
        versions = self.catalogue.find(name)
        resident = versions.all if versions is not None else []
        prepared = self._prepared[name] = list[ServedModel]()
        missing = [
            number for number in split if versions is None or number not in versions.numbered
        ]
        assert self._loader is not None
        for number in sorted({*missing, newest}, key=int):
            load = partial(self._loader.load, folder, number, [*resident, *prepared])
            served = await run_in_thread("load", load)
            prepared.append(served)
            self.catalogue.prepare(served)
            seconds = time.perf_counter() - begin
            log.info("loaded version %s of %s (%.1f s)", number, name, seconds)
        return self._plan_with(name, prepared, newest, split)

    def _plan_with(
        self, name: str, prepared: Sequence[ServedModel], newest: str, split: Mapping[str, int]
    ) -> Plan:
        """What is served after a load: within the limit, without the versions that end first."""
        versions = self.catalogue.find(name)
        added = tuple(map(pair_of, prepared))
        kept = [pair for pair in Plan.of(versions).versions if pair not in added]
        if versions is not None:
            new = dict(added)
            stay = {pair_of(each) for number, each in versions.numbered.items() if number in split}
            for pair in map(pair_of, versions.first_to_end()):
                if len(kept) + len(added) <= self._settings.model_versions:
                    break
                if pair in kept and (pair not in stay or pair[0] in new):
                    kept.remove(pair)
        return Plan((*kept, *added), newest, split, "versions")

    def _apply(self, name: str, plan: Plan) -> None:
        """Serve what a plan says, and retire everything else; in one turn of the event loop."""
        for served in self._prepared.pop(name, []):
            if pair_of(served) in plan.versions:
                self.catalogue.put(served, current=served.version == plan.current)
            else:  # the plan makes room for another attempt to load it
                self.catalogue.forget(served)
                self._retire(served)
        versions = self.catalogue.find(name)
        if versions is None:
            return
        if plan.versions:
            current = versions.numbered.get(plan.current)
            if current is not None and current is not versions.current:
                self.catalogue.put(current)
            numbered = versions.numbered
            self.catalogue.divide(name, {n: w for n, w in plan.split.items() if n in numbered})
            self.unloaded = {id_: key for id_, key in self.unloaded.items() if key[0] != name}
            log.info("serving version %s of %s; new requests get %s", ", ".join(numbered), name,
                     dict(plan.split) or plan.current)  # fmt: skip
        for served in list(versions.all):
            if not plan.keeps(served, versions):
                self._drop(served, plan.reason)
        self._count(name)

    def _drop(self, served: ServedModel, reason: str) -> None:
        """Take a version out of service."""
        self.catalogue.drop(served)
        self._ask_again.pop(served, None)
        if reason == "request":
            self.unloaded[served.id] = served.name, served.version
        version_metrics(served.name).ended(reason)
        level = logging.WARNING if reason in ("versions", "memory") else logging.INFO
        log.log(level, "version %s of %s is no longer served (%s)",
                served.version, served.name, reason)  # fmt: skip
        self._retire(served)

    def _retire(self, served: ServedModel) -> None:
        """End the engine of a version, unless another version uses it."""
        if all(other.engine is not served.engine for other in self.catalogue.every()):
            self._retirement.retire(served)

    async def _make_room(self, change: Change, name: str) -> None:
        """Unload the version that would end first, because a new one does not fit into memory."""
        versions = self.catalogue.find(name)
        assert versions is not None
        first = versions.older[0]
        log.warning("version %s of %s makes room for a new one", first.version, name)
        engine = first.engine
        ending = f"version {first.version} of {name[:100]!r}"
        await self._without(change, first, "memory")
        del first, versions
        try:
            async with asyncio.timeout(self._settings.drain_seconds + _STOP_SECONDS):
                while engine in self._retirement.engines:
                    await end_of(engine)
                    await asyncio.sleep(0)
        except TimeoutError:
            raise ModelBusy(
                f"{ending} makes room for the new one, and still finishes its requests; retry when "
                "they have ended"
            ) from None

    async def _forget_prepared(self, name: str) -> None:
        """Stop what was loaded for a change that does not happen."""
        for served in self._prepared.pop(name, []):
            self.catalogue.forget(served)
            if all(other.engine is not served.engine for other in self.catalogue.every()):
                await stop_engine(served.engine, 0)

    async def _unload(self, name: str) -> None:
        try:
            async with self._fleet.change() as change:
                served = self.catalogue[name]
                versions = self.catalogue.find(served.name)
                assert versions is not None
                if VERSION_MARK in name and len(versions.all) > 1:
                    await self._without(change, served, "request")
                else:
                    await self._make(change, served.name, Plan(reason="request"))
        except WorkerRefused as error:
            raise ModelBusy(str(error)) from error.__cause__ or error

    async def _end_forever(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self._end_some()

    async def _end_some(self) -> None:
        """Unload the versions whose states are over. Its frame, which refers to them, ends."""
        for served in [each for each in self.catalogue.every() if self._is_over(each)]:
            if self._ask_again.get(served, 0.0) <= time.monotonic():
                self._ask_again[served] = time.monotonic() + _AGAIN_SECONDS
                async with self._one_change:
                    try:
                        await self._end_over(served)
                    except (ServeError, WorkerRefused, OSError) as error:
                        log.error("%s is not unloaded: %s", served.id, error)

    async def _end_over(self, served: ServedModel) -> None:
        """Unload a version whose states are over in all workers."""
        async with self._fleet.change() as change:
            if not self._is_over(served):
                return
            with suppress(WorkerRefused):  # it has states of this version
                await change.prepare(served.name, served.states.weights)
                await self._without(change, served, "over")

    async def _without(self, change: Change, served: ServedModel, reason: str) -> None:
        """Take one of several versions out of service in all workers."""
        versions = self.catalogue.find(served.name)
        assert versions is not None
        plan = _without(Plan.of(versions, reason), served)
        await self._make(change, served.name, plan)

    async def _make(self, change: Change, name: str, plan: Plan) -> None:
        """Serve what a plan says, in all workers."""
        await change.commit(name, plan)
        self._apply(name, plan)
        await change.finish()

    def _is_over(self, served: ServedModel) -> bool:
        """Whether nothing can arrive for a version: no new request, and no state."""
        versions = self.catalogue.find(served.name)
        if versions is None or served not in versions.older or versions.shares(served):
            return False
        if not served.in_flight.idle:
            return False
        if served.model.not_streamable_because is not None:
            return True
        ttl, idle = self._settings.state_ttl_seconds, self._settings.stream_idle_seconds
        return served.states.life.is_over(self._clock(), ttl, idle)

    async def _follow(self) -> None:
        """Make the changes of other workers."""
        await self._fleet.follow(self._prepare_for, self._forget_prepared, self._apply)

    async def _prepare_for(self, name: str, weights: str) -> None:
        """Prepare another worker's change. weights: it ends this version; empty: it is a load."""
        if not weights:
            with _explained(name):
                await self._prepare(name)
            return
        versions = self.catalogue.find(name)
        served = versions and versions.of_weights(weights)
        if served and not self._is_over(served):
            raise ModelBusy(f"version {served.version} of {name} has states that may arrive")

    def _count(self, name: str) -> None:
        """Report the numbers of versions."""
        versions = self.catalogue.find(name)
        ending = self._retirement.count(name)
        if versions is None:
            version_metrics(name).set(0, 0, 0, ending)
            return
        older = len(versions.older)
        version_metrics(name).set(1, len(versions.all) - older - 1, older, ending)


class _Full(Exception):
    """A version does not fit into memory beside the others."""


def _without(plan: Plan, served: ServedModel) -> Plan:
    """A plan without one of several versions."""
    rest = tuple(each for each in plan.versions if each != pair_of(served))
    split = {number: weight for number, weight in plan.split.items() if number != served.version}
    numbers = [number for number, _ in rest]
    current = plan.current if plan.current in numbers else max(numbers, key=int)
    return replace(plan, versions=rest, current=current, split=split)


def _stopping() -> Draining:
    return Draining("the server is stopping, so it loads and unloads no models")


def _too_many_wait() -> TooManyAtOnce:
    return TooManyAtOnce(f"{_MAX_WAITING} loads and unloads of models already wait; retry later")


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Report a failure's kind to the client. Only the log has the reason, with its paths."""
    try:
        yield
    except (ModelNotFound, NoProcess, ModelBusy, Draining, ModelLoadFailed):
        raise
    except WorkerRefused as error:
        raise ModelLoadFailed(str(error), param="model") from error.__cause__ or error
    except (ModelError, ServeError, SettingsError, OSError) as error:
        kind = f" ({error.code})" if isinstance(error, ModelError | ServeError) else ""
        raise ModelLoadFailed(
            f"{name[:100]!r} was not loaded{kind}; the server's log has the reason",
            param="model",
        ) from error
