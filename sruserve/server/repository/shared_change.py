"""A change of what is served, made by the worker that has the lock and by all others."""

from collections.abc import Callable
from contextlib import suppress

from sruserve.server.repository.fleet import WorkerRefused
from sruserve.server.repository.plan import Plan
from sruserve.server.repository.worker_files import WorkerFiles


class SharedChange:
    """A change that all workers of a folder make. It is a `Change`.

    on_commit: called with the name of the model and the id of a change that was committed.
    """

    def __init__(self, files: WorkerFiles, on_commit: Callable[[str, str], None]) -> None:
        self._files, self._on_commit = files, on_commit
        self._proposed = False
        self._committed = ""

    async def prepare(self, name: str, weights: str = "") -> None:
        change, self._proposed = self._files.propose(name, weights), True
        for answer in await self._files.answers(change):
            if answer:
                raise WorkerRefused(answer["message"], no_memory=answer["no_memory"])

    async def commit(self, name: str, plan: Plan) -> None:
        try:
            self._committed, self._proposed = self._files.commit(name, plan), False
        except OSError as error:
            raise WorkerRefused(
                f"the change of {name[:100]!r} could not be stored; the server's log has the reason"
            ) from error
        self._on_commit(name, self._committed)

    async def finish(self) -> None:
        await self._files.answers(self._committed)

    def close(self) -> None:
        """Take back a proposal that was not committed."""
        if self._proposed:
            with suppress(OSError):
                self._files.take_back()
