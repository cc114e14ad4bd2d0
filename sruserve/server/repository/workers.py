"""Several workers that agree on what they serve, through files in the folder that they share.

| file | content |
|---|---|
| `lock` | locked by the worker that makes a change, and shared by one that starts |
| `PID.worker` | locked by that worker while it serves |
| `plans` | what all workers serve: the last change that was committed |
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
from sruserve.server.repository.fleet import Apply, Forget, Prepare, WorkerRefused
from sruserve.server.repository.plan import Plan
from sruserve.server.seeds import random_bytes

log = logging.getLogger("sruserve.server")

LOOK_SECONDS = 0.05  # between two looks at the files
_START = "start"  # the id of the first plans


class Workers:
    """The workers of a server that share a folder.

    name: of this worker; None: its process id.
    """

    def __init__(self, folder: Path, name: str | None = None) -> None:
        self._folder = folder
        self._own = f"{name or os.getpid()}.worker"
        self._place: int | None = None
        self._applied = _START
        self._alone = False

    @asynccontextmanager
    async def joining(self, plans: Mapping[str, Plan]) -> AsyncIterator[Mapping[str, Plan]]:
        async with AsyncExitStack() as stack:
            agreed: Mapping[str, Plan] = plans
            try:
                self._folder.mkdir(exist_ok=True)
                await stack.enter_async_context(self._locked(fcntl.LOCK_SH))
                agreed = self._agreed(plans)
            except (OSError, WorkerRefused) as error:
                self._give_up(error)
            yield agreed
            if not self._alone:
                try:
                    self._register()
                except OSError as error:
                    self._give_up(error)

    def _agreed(self, plans: Mapping[str, Plan]) -> Mapping[str, Plan]:
        """The plans of all workers: the first one to start decides."""
        first = self._write(f"{self._own}.first", _START, plans)
        with suppress(FileExistsError):  # another worker was first
            os.link(first, self._folder / "plans")
        first.unlink()
        content = self._read("plans")
        self._applied = content["id"]
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
        async with self._locked(fcntl.LOCK_EX):
            change = _SharedChange(self)
            try:
                yield change
            finally:
                change.close()

    async def follow(self, prepare: Prepare, forget: Forget, apply: Apply) -> None:
        answered, prepared = "", ""
        while not self._alone:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                content = self._read("plans")
                if content["id"] != self._applied:
                    self._applied, prepared = content["id"], ""
                    _apply(apply, content["name"], _plans(content)[content["name"]])
                    self.answer(self._applied, {})
                proposal = self._read("proposal")
                if proposal["id"] == answered or proposal["worker"] == self._own:
                    dead = proposal.get("worker") and not self.lives(proposal["worker"])
                    if prepared and dead and self._read("plans")["id"] == self._applied:
                        await forget(prepared)
                        prepared = ""
                    continue
                if prepared:
                    await forget(prepared)
                answered, prepared = proposal["id"], proposal["name"]
                if prepared:
                    self.answer(answered, await _answer(prepare, prepared, proposal["weights"]))
            except FileNotFoundError:  # there is no proposal
                continue
            except (OSError, ValueError, KeyError) as error:
                log.error("the changes of other workers cannot be followed: %s", error)
                await asyncio.sleep(1.0)

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
        except FileNotFoundError:
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
        """Propose a change, or without a name take the proposal back; returns its id."""
        change = random_bytes().hex()
        content = {"id": change, "worker": self._own, "name": name, "weights": weights}
        self._replace("proposal", json.dumps(content))
        return change

    def commit(self, name: str, plan: Plan) -> str:
        """Commit a change; returns its id."""
        plans = {**_plans(self._read("plans")), name: plan}
        change = random_bytes().hex()
        self._write("plans.new", change, plans, name).replace(self._folder / "plans")
        self._applied = change
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

    def _write(self, file: str, change: str, plans: Mapping[str, Plan], name: str = "") -> Path:
        content = {name: asdict(plan) for name, plan in plans.items()}
        path = self._folder / file
        path.write_text(json.dumps({"id": change, "name": name, "plans": content}))
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
        self._committed, self._proposed = self._workers.commit(name, plan), False

    async def finish(self) -> None:
        await self._workers.answers(self._committed)

    def close(self) -> None:
        """Take back a proposal that was not committed."""
        if self._proposed:
            with suppress(OSError):
                self._workers.propose("", "")


def _cannot_agree() -> WorkerRefused:
    return WorkerRefused(
        "the workers cannot agree on their models; ask the operator to restart the server"
    )


async def _answer(prepare: Prepare, name: str, weights: str) -> dict[str, Any]:
    """The answer to a proposal; empty: it is prepared."""
    try:
        await prepare(name, weights)
    except ServeError as error:
        log.warning("models are not changed: %s: %s", error, error.__cause__)
        no_memory = isinstance(error.__cause__, NoMemory)
        return {"message": error.message, "no_memory": no_memory}
    except faults():  # whoever asks must not wait for ever
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
