"""Changes of what is served: all workers of a server prepare one, then all of them make it."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sruserve.model.errors import ModelError
from sruserve.model.versions import VERSION_MARK
from sruserve.server.errors import (
    Draining,
    ModelBusy,
    ModelLoadFailed,
    ModelNotFound,
    NoProcess,
    ServeError,
)
from sruserve.server.repository.device import NoMemory
from sruserve.server.repository.fleet import Change, Fleet, WorkerRefused
from sruserve.server.repository.local_versions import LocalVersions
from sruserve.server.repository.plan import Plan
from sruserve.server.repository.retirement import end_of
from sruserve.server.repository.served import Served
from sruserve.server.settings import Settings, SettingsError

log = logging.getLogger("sruserve.server")


class Changes:
    """Loads and unloads versions in all workers. One change at a time, says the fleet's lock.

    closed: the server stops, so that a load that is prepared does not happen.
    unload_seconds: see `Tuning`.
    """

    def __init__(
        self, settings: Settings, local: LocalVersions, fleet: Fleet, unload_seconds: float
    ) -> None:
        self.closed = False
        self._unload_seconds = unload_seconds
        self._settings, self._local, self._fleet = settings, local, fleet

    async def load(self, name: str) -> None:
        """Serve the newest version in a model's folder, and its split; see `Repository.load`."""
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
                    await self._local.forget(name)
                    raise

    async def _prepared_by_all(self, change: Change, name: str) -> Plan:
        """Load what a load needs, here and in all workers; returns the plan."""
        try:
            plan = await self._local.prepare(name)
            await change.prepare(name)
        except (NoMemory, WorkerRefused) as error:
            await self._local.forget(name)
            versions = self._local.catalogue.find(name)
            if error.no_memory and versions is not None and versions.older:
                raise _Full from error
            raise
        except BaseException:
            await self._local.forget(name)
            raise
        if self.closed:
            await self._local.forget(name)
            raise stopping()
        return plan

    async def _make_room(self, change: Change, name: str) -> None:
        """Unload the version that would end first, because a new one does not fit into memory."""
        versions = self._local.catalogue.find(name)
        assert versions is not None
        first = versions.older[0]
        log.warning("version %s of %s makes room for a new one", first.version, name)
        engine = first.engine
        ending = f"version {first.version} of {name[:100]!r}"
        await self._without(change, first, "memory")
        del first, versions
        try:
            async with asyncio.timeout(self._settings.drain_seconds + self._unload_seconds):
                while engine in self._local.engines:
                    await end_of(engine)
                    await asyncio.sleep(0)
        except TimeoutError:
            raise ModelBusy(
                f"{ending} makes room for the new one, and still finishes its requests; retry when "
                "they have ended"
            ) from None

    async def unload(self, name: str) -> None:
        """Unload a model, or one version of it; see `Repository.unload`."""
        try:
            async with self._fleet.change() as change:
                served = self._local.catalogue[name]
                versions = self._local.catalogue.find(served.name)
                assert versions is not None
                if VERSION_MARK in name and len(versions.all) > 1:
                    await self._without(change, served, "request")
                else:
                    await self._make(change, served.name, Plan(reason="request"))
        except WorkerRefused as error:
            raise ModelBusy(str(error)) from error.__cause__ or error

    async def end_over(self, served: Served) -> None:
        """Unload a version whose states are over in all workers."""
        async with self._fleet.change() as change:
            if not self._local.is_over(served):
                return
            with suppress(WorkerRefused):  # it has states of this version
                await change.prepare(served.name, served.weights)
                await self._without(change, served, "over")

    async def _without(self, change: Change, served: Served, reason: str) -> None:
        """Take one of several versions out of service in all workers."""
        versions = self._local.catalogue.find(served.name)
        assert versions is not None
        await self._make(change, served.name, Plan.of(versions, reason).without(served))

    async def _make(self, change: Change, name: str, plan: Plan) -> None:
        """Serve what a plan says, in all workers."""
        await change.commit(name, plan)
        self._local.apply(name, plan)
        await change.finish()

    async def prepare_for(self, name: str, weights: str) -> None:
        """Prepare another worker's change. weights: it ends this version; empty: it is a load."""
        if not weights:
            with _explained(name):
                await self._local.prepare(name)
            return
        versions = self._local.catalogue.find(name)
        served = versions and versions.of_weights(weights)
        if served and not self._local.is_over(served):
            raise ModelBusy(
                f"version {served.version} of {name} has states that may arrive: "
                "retry when they are over"
            )


class _Full(Exception):
    """A version does not fit into memory beside the others."""


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


def stopping() -> Draining:
    """The refusal of a change while the server stops."""
    return Draining(
        "the server is stopping, so it loads and unloads no models: ask another replica"
    )
