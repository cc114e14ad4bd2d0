"""The versions of one worker: loaded for a change, in service, or finishing their requests."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.errors import ModelBusy, ModelNotFound
from sruserve.server.metrics.metrics import version_metrics, versions_limit
from sruserve.server.metrics.served_versions import ServedVersion
from sruserve.server.offload import run_in_thread
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.repository.discovery import loadable_models
from sruserve.server.repository.loader import Loader
from sruserve.server.repository.plan import Plan, newest_and_split, pair_of
from sruserve.server.repository.retirement import Retirement, stop_engine
from sruserve.server.repository.served import Served
from sruserve.server.repository.versions import Versions
from sruserve.server.settings import Settings, read_names

log = logging.getLogger("sruserve.server")

_REASONS = {
    "over": "no state of it can arrive",
    "request": "it was unloaded",
    "versions": "SRUSERVE_MODEL_VERSIONS allows no more, so its states are refused from now on",
    "memory": "the memory did not suffice, so its states are refused from now on",
}
_DIGEST_DIGITS = 16  # enough to compare; a legend has room for them
_MAX_RETIRING = 4  # engines of one name that finish their requests, each with its memory


class LocalVersions:
    """Carries out in one worker what the workers of a server have agreed on.

    catalogue: the versions in service.
    unloaded: the ids of versions that were unloaded by request, with their name and number.
    loader: set when the server starts.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self.catalogue = Catalogue(defaults=read_names(settings.default_models))
        self.unloaded: dict[str, tuple[str, str]] = {}
        self.loader: Loader | None = None
        self._settings, self._clock = settings, clock
        self._prepared: dict[str, list[Served]] = {}
        self._retirement = Retirement(settings.drain_seconds, self.count)
        versions_limit(settings.model_versions)

    @property
    def on_end(self) -> list[Callable[[JobEngine], None]]:
        """Called with each engine that has ended while the server runs."""
        return self._retirement.on_end

    @property
    def engines(self) -> list[JobEngine]:
        """The engines of all served versions, and of unloaded ones that finish their requests."""
        engines = dict.fromkeys(served.engine for served in self.catalogue.every())
        return [*engines, *self._retirement.engines]

    def close(self) -> list[JobEngine]:
        """Leave the engines, which are returned, to the caller, who stops them all."""
        self._retirement.closed = True
        return self.engines

    async def prepare(self, name: str) -> Plan:
        """Load the versions that a load needs, so that states reach them; returns the plan."""
        begin = time.perf_counter()
        await self.forget(name)  # what an earlier change may have left
        if self._retirement.count(name) >= _MAX_RETIRING:
            raise ModelBusy(
                f"{_MAX_RETIRING} engines of {name[:100]!r} were unloaded and still finish their "
                "requests; retry when some have ended"
            )
        folders = await run_in_thread("load", partial(loadable_models, self._settings))
        folder = folders.get(name)
        if folder is None:
            raise ModelNotFound(
                f"there is no model folder named {name[:100]!r}: "
                "correct the name, or ask the operator to add it",
                param="model",
            )
        look = partial(newest_and_split, folder, self._settings.model_versions)
        newest, split = await run_in_thread("load", look)
        versions = self.catalogue.find(name)
        existing = versions.all if versions is not None else []
        prepared = self._prepared[name] = list[Served]()
        missing = [
            number for number in split if versions is None or number not in versions.numbered
        ]
        assert self.loader is not None
        for number in sorted({*missing, newest}, key=int):
            load = partial(self.loader.load, folder, number, [*existing, *prepared])
            served = await run_in_thread("load", load)
            prepared.append(served)
            self.catalogue.prepare(served)
            seconds = time.perf_counter() - begin
            log.info("loaded version %s of %s (%.1f s)", number, name, seconds)
        return self._plan_with(name, prepared, newest, split)

    def _plan_with(
        self, name: str, prepared: Sequence[Served], newest: str, split: Mapping[str, int]
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

    def apply(self, name: str, plan: Plan) -> None:
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
            log.info("%s", versions.describe())
        for served in list(versions.all):
            if not plan.keeps(served, versions):
                self._drop(served, plan.reason)
        self.count(name)

    def _drop(self, served: Served, reason: str) -> None:
        """Take a version out of service."""
        self.catalogue.drop(served)
        if reason == "request":
            self.unloaded[served.id] = served.name, served.version
        version_metrics(served.name).ended(reason)
        level = logging.WARNING if reason in ("versions", "memory") else logging.INFO
        log.log(level, "version %s of %s is no longer served: %s",
                served.version, served.name, _REASONS[reason])  # fmt: skip
        self._retire(served)

    def _retire(self, served: Served) -> None:
        """End the engine of a version, unless another version uses it."""
        if all(other.engine is not served.engine for other in self.catalogue.every()):
            self._retirement.retire(served)

    async def forget(self, name: str) -> None:
        """Stop what was loaded for a change that does not happen."""
        for served in self._prepared.pop(name, []):
            self.catalogue.forget(served)
            if all(other.engine is not served.engine for other in self.catalogue.every()):
                await stop_engine(served.engine, 0)

    def is_over(self, served: Served) -> bool:
        """Whether nothing can arrive for a version: no new request, and no state."""
        versions = self.catalogue.find(served.name)
        if versions is None or served not in versions.older or versions.shares(served):
            return False
        if not served.in_flight.idle:
            return False
        if not served.has_states:
            return True
        ttl, idle = self._settings.state_ttl_seconds, self._settings.stream_idle_seconds
        return served.life.is_over(self._clock(), ttl, idle)

    def count(self, name: str) -> None:
        """Report the versions."""
        versions = self.catalogue.find(name)
        served = [] if versions is None else _described(versions)
        version_metrics(name).set(served, self._retirement.count(name))


def _described(versions: Versions) -> list[ServedVersion]:
    """The versions of a model as the metrics have them."""
    older = versions.older
    return [
        ServedVersion(
            each.version,
            each.model.digest[:_DIGEST_DIGITS],
            "current" if each is versions.current else "older" if each in older else "split",
        )
        for each in versions.all
    ]
