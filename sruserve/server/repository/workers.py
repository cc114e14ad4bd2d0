"""Several workers that agree on what they serve: one proposes, all prepare, and then all apply.

`WorkerFiles` describes the files through which they do this.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from sruserve.server.errors import ServeError, faults
from sruserve.server.repository.device import NoMemory
from sruserve.server.repository.fleet import Apply, FirstPlans, Forget, Prepare, WorkerRefused
from sruserve.server.repository.plan import Plan
from sruserve.server.repository.shared_change import SharedChange
from sruserve.server.repository.worker_files import LOOK_SECONDS, WorkerFiles, cannot_agree

log = logging.getLogger("sruserve.server")

_RETRY_SECONDS = 1.0


class Workers:
    """The workers of a server that share a folder.

    name: of this worker; None: its process id.
    retry_seconds: after files that cannot be read or written.
    """

    def __init__(
        self, folder: Path, name: str | None = None, retry_seconds: float = _RETRY_SECONDS
    ) -> None:
        self._files = WorkerFiles(folder, f"{name or os.getpid()}.worker")
        self._retry_seconds = retry_seconds
        self._applied: dict[str, str] = {}  # the last change of each model
        self._answered, self._prepared = "", ""
        self._owed: tuple[str, dict[str, Any]] | None = None  # an answer, until it is written
        self._calls: tuple[Prepare, Forget, Apply] | None = None
        self._looking = asyncio.Lock()
        self._alone = False

    @asynccontextmanager
    async def joining(self, first: FirstPlans) -> AsyncIterator[Mapping[str, Plan]]:
        async with AsyncExitStack() as stack:
            plans: Mapping[str, Plan] | None = None
            try:
                self._files.create()
                await stack.enter_async_context(self._files.locked(fcntl.LOCK_SH))
                plans = self._agreed(first)
            except (OSError, WorkerRefused) as error:
                self._give_up(error)
            yield first() if plans is None else plans
            if not self._alone:
                try:
                    self._files.register()
                except OSError as error:
                    self._give_up(error)

    def _agreed(self, first: FirstPlans) -> Mapping[str, Plan]:
        """The plans of all workers, whose earlier changes this one need not make."""
        found = self._files.found(first)
        self._applied = found.changes
        self._answered = self._files.proposal()["id"]  # of a change that is over
        return found.plans

    def _give_up(self, error: Exception) -> None:
        """Serve without the other workers, as when the disk is full."""
        self._alone = True
        log.error("this worker cannot agree with the others, and changes no models: %s", error)

    @asynccontextmanager
    async def change(self) -> AsyncIterator[SharedChange]:
        if self._alone:
            raise cannot_agree()
        async with self._files.locked(fcntl.LOCK_EX), self._looking:
            try:
                await self._catch_up()
            except (OSError, ValueError, KeyError) as error:
                raise cannot_agree() from error
            change = SharedChange(self._files, self._note_own)
            try:
                yield change
            finally:
                change.close()

    def _note_own(self, name: str, change: str) -> None:
        """Note a change that this worker has committed; changes of others may be unseen."""
        self._applied = {**self._applied, name: change}

    async def _catch_up(self) -> None:
        """Make the changes of other workers that this one has not seen; none is in progress."""
        self._owed = None  # nobody waits for it
        if self._calls is not None:
            _prepare, forget, apply = self._calls
            self._apply_commits(apply)
            await self._forget_prepared(forget)
        self._answered = self._files.proposal()["id"]

    async def follow(self, prepare: Prepare, forget: Forget, apply: Apply) -> None:
        self._calls = prepare, forget, apply
        logged = ""
        while not self._alone:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                async with self._looking:
                    await self._look(prepare, forget, apply)
                logged = ""
            except (OSError, ValueError, KeyError) as error:
                if str(error) != logged:  # once, however often it is tried
                    logged = str(error)
                    log.error(
                        "the changes of other workers cannot be followed: %s; restart the server "
                        "if its temporary folder was removed",
                        error,
                    )
                await asyncio.sleep(self._retry_seconds)

    async def _look(self, prepare: Prepare, forget: Forget, apply: Apply) -> None:
        self._write_owed()
        proposal = self._files.proposal()
        change, worker, name = proposal["id"], proposal["worker"], proposal["name"]
        # If it was not committed before, which the next line sees.
        over = bool(self._prepared) and not self._files.lives(worker)
        if commit := self._apply_commits(apply):
            self._owe(commit, {})
        if worker == self._files.own:
            return
        if change == self._answered:
            if over:
                await self._forget_prepared(forget)
            return
        await self._forget_prepared(forget)
        self._answered, self._prepared = change, name
        if name:
            self._owe(change, await _answer(prepare, name, proposal["weights"]))

    def _apply_commits(self, apply: Apply) -> str:
        """Make the changes that were committed since the last look; returns the id of the last."""
        agreed = self._files.agreement()
        changes = agreed.changes
        unseen = [name for name in changes if self._applied.get(name) != changes[name]]
        self._applied = changes
        for name in unseen:
            if name == self._prepared:
                self._prepared = ""
            _apply(apply, name, agreed.plans[name])
        return agreed.change if unseen else ""

    async def _forget_prepared(self, forget: Forget) -> None:
        name, self._prepared = self._prepared, ""
        if name:
            await forget(name)

    def _owe(self, change: str, content: dict[str, Any]) -> None:
        """Answer a proposal or a commit; at a later look, if the disk is full."""
        self._owed = change, content
        self._write_owed()

    def _write_owed(self) -> None:
        if self._owed is not None:
            self._files.answer(*self._owed)
            self._owed = None

    def others(self) -> list[str]:
        """The other workers that serve."""
        return self._files.others()

    def leave(self) -> None:
        self._files.leave()


async def _answer(prepare: Prepare, name: str, weights: str) -> dict[str, Any]:
    """The answer to a proposal; empty: it is prepared."""
    try:
        await prepare(name, weights)
    except ServeError as error:
        log.warning("models are not changed: %s: %s", error.code, error.__cause__)
        no_memory = isinstance(error.__cause__, NoMemory)
        return {"message": error.message, "no_memory": no_memory}
    except faults():  # the worker that asks must not wait for ever
        log.exception("a change of another worker was not prepared")
        return {"message": f"{name!r} was not loaded by all workers", "no_memory": False}
    return {}


def _apply(apply: Apply, name: str, plan: Plan) -> None:
    try:
        apply(name, plan)
    except faults():
        log.exception("a change of another worker was not made")
