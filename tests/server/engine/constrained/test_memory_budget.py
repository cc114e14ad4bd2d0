"""What the processes of all grammars hold together is bounded."""

import pytest

from sruserve.server.engine.constrained.memory_budget import GrammarMemory
from sruserve.server.errors import (
    Overloaded,
    ServeError,
)
from tests.server.engine.constrained.grammar_processes import Grammars, begun


def test_what_all_hold_together_is_bounded_and_the_largest_ends(grammars: Grammars) -> None:
    few = Grammars(max_bytes=16 << 20)
    try:
        small, large = few.regex("[a-z]{9}"), few.regex(r"(\w{1,80}\s?){1,80}")
        assert len(few.memory) == 2
        position = begun(small)
        growing = begun(large)
        while not growing.ended:
            assert growing.advance(growing.allowed_ids[0])
        assert isinstance(growing.problem, Overloaded)
        with pytest.raises(Overloaded):
            begun(large)
        assert few.memory.used_bytes <= 16 << 20
        assert position.advance(97)
        assert position.problem is None
    finally:
        few.host.close()


class FakeProcess:
    """A process that reports its memory."""

    def __init__(self, owner: str, used_bytes: int) -> None:
        self.owner, self.used_bytes = owner, used_bytes
        self.ended = False

    def end(self, reason: ServeError | None = None) -> None:
        assert isinstance(reason, Overloaded)
        self.ended = True


def test_the_largest_of_the_owner_who_holds_most_in_all_ends() -> None:
    memory = GrammarMemory(60 << 20)
    crowd = [FakeProcess("many", size << 20) for size in (6, 8, 7, 5)]
    alone = FakeProcess("one", 20 << 20)
    for process in (*crowd, alone):
        memory.add(process)
    memory.check()
    assert [process.ended for process in (*crowd, alone)] == [False, True, False, False, False]
    memory.check()
    assert sum(process.ended for process in crowd) == 1
