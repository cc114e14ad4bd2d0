"""The versions that a worker loads when it starts."""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from sruserve.model.errors import FolderError, ModelError
from sruserve.model.versions import versions
from sruserve.server.metrics.metrics import version_metrics
from sruserve.server.offload import run_in_thread
from sruserve.server.repository.device import NoMemory
from sruserve.server.repository.local_versions import LocalVersions
from sruserve.server.repository.plan import Plan
from sruserve.server.settings import Settings, SettingsError, variable_name

log = logging.getLogger("sruserve.server")


class Opening:
    """Loads what the workers of a server have agreed on.

    folders: of the models, by name.
    joins: whether other workers serve already, which have loaded the same versions before.
    """

    def __init__(
        self, settings: Settings, local: LocalVersions, folders: Mapping[str, Path], joins: bool
    ) -> None:
        self._settings, self._local, self._folders, self._joins = settings, local, folders, joins

    async def load(self, plans: Mapping[str, Plan]) -> None:
        """Load the versions of all models; raises `ModelError` or `SettingsError`."""
        served = {name: plan for name, plan in plans.items() if plan.versions}
        for needed in (True, False):  # no older version takes the memory of a needed one
            for name, plan in served.items():
                await self._load(name, plan, needed)
        for name, plan in served.items():
            self._arrange(name, plan)

    async def _load(self, name: str, plan: Plan, needed: bool) -> None:
        """Load the versions of a model that new requests need, or the others.

        One that cannot be loaded is left out if it is an older one, or if other workers have loaded
        it before, because its folder was changed meanwhile.
        """
        loader, catalogue, folder = (
            self._local.loader,
            self._local.catalogue,
            self._folders.get(name),
        )
        assert loader is not None
        numbers = dict(plan.versions)  # of two with a number, the folder has the later one
        fails = needed and plan.is_first and not self._joins
        for number in numbers:
            if (number in (plan.current, *plan.split)) is not needed:
                continue
            served = catalogue.find(name)
            existing = served.all if served is not None else []
            try:
                if folder is None:
                    raise FolderError("its folder was removed; restore it, or load the model again")
                load = partial(loader.load, folder, number, existing)
                catalogue.put(await run_in_thread("load", load))
            except (ModelError, SettingsError) as error:
                if fails or (needed and plan.is_first and isinstance(error, NoMemory)):
                    raise
                log.error("version %s of %s is not served: %s", number, name, error)

    def _arrange(self, name: str, plan: Plan) -> None:
        """Put the versions that were loaded in the order of the plan."""
        catalogue = self._local.catalogue
        loaded = catalogue.find(name)
        if loaded is None:
            return
        numbered = loaded.numbered
        current = plan.current if plan.current in numbered else max(numbered, key=int)
        for number in dict(plan.versions):
            if number in numbered:
                catalogue.put(numbered[number], current=number == current)
        catalogue.divide(name, {n: w for n, w in plan.split.items() if n in numbered})
        self._local.count(name)
        self._report(name, plan)

    def _report(self, name: str, plan: Plan) -> None:
        """Log the versions of a model that has several."""
        numbers = versions(self._folders[name]) if name in self._folders else {}
        loaded = self._local.catalogue.find(name)
        if loaded is None or len(numbers) < 2:
            return
        log.info("%s", loaded.describe())
        left_out = [number for number in numbers if number not in dict(plan.versions)]
        if left_out and plan.is_first:  # others were loaded or unloaded by request
            for _ in left_out:
                version_metrics(name).ended("start")
            log.warning(
                "versions %s of %s are not served: %s=%d",
                ", ".join(left_out), name, variable_name("model_versions"),
                self._settings.model_versions,
            )  # fmt: skip
