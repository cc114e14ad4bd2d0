"""Several workers that agree on what they serve, through files in the folder that they share.

| file | content |
|---|---|
| `lock` | locked by the worker that makes a change, and shared by one that starts |
| `PID.worker` | locked by that worker while it serves |
| `plans` | what all workers serve, and the last change of each model that was committed |
| `proposal` | what all workers shall prepare, before it is committed |
| `ID.PID` | the answer of a worker to a proposal or a commit |

The kernel releases the locks of a worker that ends, so nobody waits for it.
"""

import asyncio
import fcntl
import json
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sruserve.server.errors import ServeError, faults
from sruserve.server.repository.device import NoMemory
from sruserve.server.repository.fleet import Apply, FirstPlans, Forget, Prepare, WorkerRefused
from sruserve.server.repository.plan import Plan
from sruserve.server.seeds import random_bytes

log = logging.getLogger("sruserve.server")

LOOK_SECONDS = 0.05  # between two looks at the files
_RETRY_SECONDS = 1.0
_START = "start"  # the id of the first plans


class Workers:
    """The workers of a server that share a folder.

    name: of this worker; None: its process id.
    retry_seconds: after files that cannot be read or written.
    """

    def __init__(
        self, folder: Path, name: str | None = None, retry_seconds: float = _RETRY_SECONDS
    ) -> None:
        self._folder, self._retry_seconds = folder, retry_seconds
        self._own = f"{name or os.getpid()}.worker"
        self._place: int | None = None
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
                self._folder.mkdir(exist_ok=True)
                await stack.enter_async_context(self._locked(fcntl.LOCK_SH))
                plans = self._agreed(first)
            except (OSError, WorkerRefused) as error:
                self._give_up(error)
            yield first() if plans is None else plans
            if not self._alone:
                try:
                    self._register()
                except OSError as error:
                    self._give_up(error)

    def _agreed(self, first: FirstPlans) -> Mapping[str, Plan]:
        """The plans of all workers: the first one to start decides."""
        if not (self._folder / "plans").exists():
            plans = first()
            path = self._write(f"{self._own}.first", _START, plans, dict.fromkeys(plans, _START))
            with suppress(FileExistsError):  # another worker was first
                os.link(path, self._folder / "plans")
            path.unlink()
        content = self._read("plans")
        self._applied = content["changes"]
        self._answered = self._proposal()["id"]  # of a change that is over
        return _plans(content)

    def _register(self) -> None:
        self._place = os.open(self._folder / self._own, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._place, fcntl.LOCK_EX)

    def _give_up(self, error: Exception) -> None:
        """Serve without the other workers, as when the disk is full."""
        self._alone = True
        log.error("this worker cannot agree with the others, and changes no models: %s", error)

    @asynccontextmanager
    async def change(self) -> AsyncIterator["_SharedChange"]:
        if self._alone:
            raise _cannot_agree()
        async with self._locked(fcntl.LOCK_EX), self._looking:
            try:
                await self._catch_up()
            except (OSError, ValueError, KeyError) as error:
                raise _cannot_agree() from error
            change = _SharedChange(self)
            try:
                yield change
            finally:
                change.close()

    async def _catch_up(self) -> None:
        """Make the changes of other workers that this one has not seen; none is in progress."""
        self._owed = None  # nobody waits for it
        if self._calls is not None:
            _prepare, forget, apply = self._calls
            self._apply_commits(apply)
            await self._forget_prepared(forget)
        self._answered = self._proposal()["id"]

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
        proposal = self._proposal()
        change, worker, name = proposal["id"], proposal["worker"], proposal["name"]
        over = bool(self._prepared) and not self.lives(worker)  # if it was not committed before
        if commit := self._apply_commits(apply):
            self._owe(commit, {})
        if worker == self._own:
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
        content = self._read("plans")
        changes, plans = content["changes"], _plans(content)
        unseen = [name for name in changes if self._applied.get(name) != changes[name]]
        self._applied = changes
        for name in unseen:
            if name == self._prepared:
                self._prepared = ""
            _apply(apply, name, plans[name])
        return content["id"] if unseen else ""

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
            self.answer(*self._owed)
            self._owed = None

    def leave(self) -> None:
        if self._place is not None:
            (self._folder / self._own).unlink(missing_ok=True)
            os.close(self._place)
        self._place = None

    def others(self) -> list[str]:
        """The other workers that serve."""
        names = [path.name for path in self._folder.glob("*.worker")]
        return [name for name in names if name != self._own and self.lives(name)]

    def lives(self, name: str) -> bool:
        """Whether a worker serves."""
        try:
            descriptor = os.open(self._folder / name, os.O_RDWR)
        except (FileNotFoundError, IsADirectoryError):  # there is no such worker, or no name
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(descriptor)

    def propose(self, name: str, weights: str) -> str:
        """Propose a change; returns its id."""
        change = random_bytes().hex()
        content = {"id": change, "worker": self._own, "name": name, "weights": weights}
        self._replace("proposal", json.dumps(content))
        return change

    def take_back(self) -> None:
        """Take the proposal back, which needs no room on the disk."""
        (self._folder / "proposal").unlink(missing_ok=True)

    def commit(self, name: str, plan: Plan) -> str:
        """Commit a change; returns its id."""
        content = self._read("plans")
        change = random_bytes().hex()
        plans, changes = {**_plans(content), name: plan}, {**content["changes"], name: change}
        self._write("plans.new", change, plans, changes).replace(self._folder / "plans")
        self._applied = {**self._applied, name: change}  # others may be unseen
        return change

    def answer(self, change: str, content: dict[str, Any]) -> None:
        """Answer a proposal or a commit."""
        self._replace(f"{change}.{self._own}", json.dumps(content))

    async def answers(self, change: str) -> list[dict[str, Any]]:
        """The answers of all other workers that serve until then."""
        answers, others = [], self.others()
        for name in others:
            file = self._folder / f"{change}.{name}"
            while not file.exists() and self.lives(name):
                await asyncio.sleep(LOOK_SECONDS / 2)
            with suppress(FileNotFoundError):
                answers.append(json.loads(file.read_bytes()))
                file.unlink()
        return answers

    @asynccontextmanager
    async def _locked(self, kind: int) -> AsyncIterator[None]:
        try:
            descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise _cannot_agree() from error
        try:
            while True:
                try:
                    fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(LOOK_SECONDS / 2)
            yield
        finally:
            os.close(descriptor)

    def _read(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self._folder / name).read_bytes())
        return content

    def _proposal(self) -> dict[str, str]:
        try:
            return self._read("proposal")
        except FileNotFoundError:
            return {"id": "", "worker": "", "name": ""}

    def _write(
        self, file: str, change: str, plans: Mapping[str, Plan], changes: Mapping[str, str]
    ) -> Path:
        content = {name: asdict(plan) for name, plan in plans.items()}
        path = self._folder / file
        path.write_text(json.dumps({"id": change, "changes": changes, "plans": content}))
        return path

    def _replace(self, name: str, text: str) -> None:
        new = self._folder / f"{name}.new"
        new.write_text(text)
        new.replace(self._folder / name)


class _SharedChange:
    """A change that all workers of a folder make."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._proposed = False
        self._committed = ""

    async def prepare(self, name: str, weights: str = "") -> None:
        change, self._proposed = self._workers.propose(name, weights), True
        for answer in await self._workers.answers(change):
            if answer:
                raise WorkerRefused(answer["message"], no_memory=answer["no_memory"])

    async def commit(self, name: str, plan: Plan) -> None:
        try:
            self._committed, self._proposed = self._workers.commit(name, plan), False
        except OSError as error:
            raise WorkerRefused(
                f"the change of {name[:100]!r} could not be stored; the server's log has the reason"
            ) from error

    async def finish(self) -> None:
        await self._workers.answers(self._committed)

    def close(self) -> None:
        """Take back a proposal that was not committed."""
        if self._proposed:
            with suppress(OSError):
                self._workers.take_back()


def _cannot_agree() -> WorkerRefused:
    return WorkerRefused(
        "the workers cannot agree on their models; ask the operator to restart the server"
    )


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


def _plans(content: Mapping[str, Any]) -> dict[str, Plan]:
    return {
        name: Plan(
            tuple(map(tuple, plan["versions"])), plan["current"], plan["split"], plan["reason"]
        )
        for name, plan in content["plans"].items()
    }
