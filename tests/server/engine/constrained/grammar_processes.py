"""Constraints whose grammars are in processes of their own, and what becomes of these."""

import asyncio
import select
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import psutil
import pytest

from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.memory_budget import GrammarMemory
from sruserve.server.engine.constrained.process_client import Bounds, GrammarProcess
from sruserve.server.engine.constrained.process_host import GrammarHost
from sruserve.server.engine.constrained.remote_state import RemoteConstraint, RemoteConstraintState
from tests.server.hand_clock import HandClock

T = TypeVar("T")
_SECONDS = 120  # a process makes way for everything else
ALL = ByteVocabulary.of_values(bytes(range(256)))


def schema_of_lengths(lengths: Iterable[int]) -> dict[str, Any]:
    """Strings of many patterns: to look at all of them takes the product of what each allows."""
    patterns = [f"^(s|x.*({'abcdefg'[n % 5 : n % 5 + 3]}).{{{n}}}z)$" for n in lengths]
    return {"allOf": [{"type": "string", "pattern": pattern} for pattern in patterns]}


MANY_AT_ONCE = schema_of_lengths(range(60))


class Grammars:
    """Makes confined constraints; `memory` counts them. clock: of their helper."""

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        self.clock = HandClock()
        self.host = GrammarHost(clock=self.clock)
        self.memory = GrammarMemory(max_bytes)

    async def start(self, bounds: Bounds) -> GrammarProcess:
        channel = await self.host.fork()
        process = GrammarProcess(
            self.host, channel, self.memory, bounds,
            stall_seconds=_SECONDS, start_seconds=_SECONDS,
        )  # fmt: skip
        await process.start()
        return process

    async def make(
        self,
        kind: str,
        content: object,
        bounds: Bounds | None = None,
        vocabulary: ByteVocabulary = ALL,
    ) -> RemoteConstraint:
        process = await self.start(bounds or Bounds())
        return await RemoteConstraint.compile(kind, content, vocabulary, process)

    def regex(self, pattern: str, **options: Any) -> RemoteConstraint:
        return run(self.make("regex", pattern, **options))


def run(work: Coroutine[Any, Any, T]) -> T:
    async def within() -> T:
        async with asyncio.timeout(_SECONDS):
            return await work

    return asyncio.run(within())


def begun(constraint: RemoteConstraint, spelled: bytes = b"") -> RemoteConstraintState:
    """A position that is there; raises what keeps it from being so."""
    position = constraint.begin(spelled)
    assert position.ready(time.monotonic() + 60)
    if position.problem is not None:
        raise position.problem
    return position


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def count_polls(monkeypatch: pytest.MonkeyPatch, when: Callable[[], int]) -> Counter[int]:
    """Count the polls from now on, by what `when` tells at each."""
    polls: Counter[int] = Counter()
    poll = select.poll

    class Counted:
        def __init__(self) -> None:
            self._poll = poll()
            self.register = self._poll.register

        def poll(self, milliseconds: float) -> list[tuple[int, int]]:
            polls[when()] += 1
            return self._poll.poll(milliseconds)

    monkeypatch.setattr(select, "poll", Counted)
    return polls
