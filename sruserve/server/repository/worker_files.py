"""The files through which the workers of a server agree on what they serve.

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
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sruserve.server.repository.fleet import FirstPlans, WorkerRefused
from sruserve.server.repository.plan import Plan
from sruserve.server.seeds import random_bytes

LOOK_SECONDS = 0.05  # between two looks at the files
_START = "start"  # the id of the first plans


@dataclass(frozen=True, slots=True)
class Agreement:
    """What all workers serve.

    change: the id of the last change.
    changes: the id of the last change of each model.
    """

    change: str
    changes: dict[str, str]
    plans: dict[str, Plan]


class WorkerFiles:
    """The folder that the workers share, as one of them sees it.

    own: the name of this worker, which is that of its file.
    """

    def __init__(self, folder: Path, own: str) -> None:
        self._folder, self.own = folder, own
        self._place: int | None = None

    def create(self) -> None:
        """Create the folder, unless another worker has."""
        self._folder.mkdir(exist_ok=True)

    @asynccontextmanager
    async def locked(self, kind: int) -> AsyncIterator[None]:
        """Wait for the lock of changes. kind: `LOCK_EX` or `LOCK_SH`."""
        try:
            descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise cannot_agree() from error
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

    def register(self) -> None:
        """Let the other workers see that this one serves."""
        self._place = os.open(self._folder / self.own, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._place, fcntl.LOCK_EX)

    def leave(self) -> None:
        """Let the other workers no longer wait for this one."""
        if self._place is not None:
            (self._folder / self.own).unlink(missing_ok=True)
            os.close(self._place)
        self._place = None

    def others(self) -> list[str]:
        """The other workers that serve."""
        names = [path.name for path in self._folder.glob("*.worker")]
        return [name for name in names if name != self.own and self.lives(name)]

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

    def found(self, first: FirstPlans) -> Agreement:
        """What all workers serve: the first one to start decides."""
        if not (self._folder / "plans").exists():
            plans = first()
            path = self._write(f"{self.own}.first", _START, plans, dict.fromkeys(plans, _START))
            with suppress(FileExistsError):  # another worker was first
                os.link(path, self._folder / "plans")
            path.unlink()
        return self.agreement()

    def agreement(self) -> Agreement:
        """What all workers serve now."""
        content = self._read("plans")
        return Agreement(content["id"], content["changes"], _plans(content))

    def commit(self, name: str, plan: Plan) -> str:
        """Commit a change; returns its id."""
        agreed = self.agreement()
        change = random_bytes().hex()
        plans, changes = {**agreed.plans, name: plan}, {**agreed.changes, name: change}
        self._write("plans.new", change, plans, changes).replace(self._folder / "plans")
        return change

    def proposal(self) -> dict[str, str]:
        """The last proposal; its values are empty if it was taken back, or there was none."""
        try:
            return self._read("proposal")
        except FileNotFoundError:
            return {"id": "", "worker": "", "name": ""}

    def propose(self, name: str, weights: str) -> str:
        """Propose a change; returns its id."""
        change = random_bytes().hex()
        content = {"id": change, "worker": self.own, "name": name, "weights": weights}
        self._replace("proposal", json.dumps(content))
        return change

    def take_back(self) -> None:
        """Take the proposal back, which needs no room on the disk."""
        (self._folder / "proposal").unlink(missing_ok=True)

    def answer(self, change: str, content: dict[str, Any]) -> None:
        """Answer a proposal or a commit."""
        self._replace(f"{change}.{self.own}", json.dumps(content))

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

    def _read(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self._folder / name).read_bytes())
        return content

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


def cannot_agree() -> WorkerRefused:
    """The error of a change for which the files cannot be used."""
    return WorkerRefused(
        "the workers cannot agree on their models; ask the operator to restart the server"
    )


def _plans(content: Mapping[str, Any]) -> dict[str, Plan]:
    return {
        name: Plan(
            tuple(map(tuple, plan["versions"])), plan["current"], plan["split"], plan["reason"]
        )
        for name, plan in content["plans"].items()
    }
