"""What the workers of a server agree on: which versions of which models all of them serve."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from sruserve.server.repository.plan import Plan

FirstPlans = Callable[[], Mapping[str, Plan]]
Prepare = Callable[[str, str], Awaitable[None]]
Forget = Callable[[str], Awaitable[None]]
Apply = Callable[[str, Plan], None]


class WorkerRefused(Exception):
    """The workers cannot make a change together. no_memory: one of them has too little memory."""

    def __init__(self, message: str, *, no_memory: bool = False) -> None:
        super().__init__(message)
        self.no_memory = no_memory


class Change(Protocol):
    """One change of what is served; no other worker makes one meanwhile.

    A change that is not committed is undone everywhere.
    """

    async def prepare(self, name: str, weights: str = "") -> None:
        """Let all other workers prepare a load, or with `weights` agree to the end of a version.

        Raises `WorkerRefused`.
        """
        ...

    async def commit(self, name: str, plan: Plan) -> None:
        """Make the change, also if this worker ends now."""
        ...

    async def finish(self) -> None:
        """Wait until all other workers have made the change."""
        ...


class Fleet(Protocol):
    """The workers of a server, as one of them sees them."""

    def joining(self, first: FirstPlans) -> AbstractAsyncContextManager[Mapping[str, Plan]]:
        """Join the workers at the block's end; gives the plans to serve.

        first: makes the plans of a server that starts; not called if there are others. Nothing
            changes meanwhile.
        """
        ...

    def others(self) -> Sequence[str]:
        """The other workers that serve."""
        ...

    def change(self) -> AbstractAsyncContextManager[Change]:
        """Wait for the turn of a change."""
        ...

    async def follow(self, prepare: Prepare, forget: Forget, apply: Apply) -> None:
        """Make the changes of other workers, until cancelled."""
        ...

    def leave(self) -> None:
        """Leave the workers, which no longer wait for this one."""
        ...


class Alone:
    """The only worker of a server: it agrees with itself."""

    @asynccontextmanager
    async def joining(self, first: FirstPlans) -> AsyncIterator[Mapping[str, Plan]]:
        yield first()

    def others(self) -> Sequence[str]:
        return ()

    @asynccontextmanager
    async def change(self) -> AsyncIterator[Change]:
        yield _OwnChange()

    async def follow(self, prepare: Prepare, forget: Forget, apply: Apply) -> None:
        del prepare, forget, apply

    def leave(self) -> None:
        """Do nothing."""


class _OwnChange:
    async def prepare(self, name: str, weights: str = "") -> None:
        del name, weights

    async def commit(self, name: str, plan: Plan) -> None:
        del name, plan

    async def finish(self) -> None:
        """Do nothing."""
