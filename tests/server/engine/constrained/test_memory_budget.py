"""What the processes of all grammars hold together is bounded."""

import pytest

from sruserve.server.engine.constrained.memory_budget import GrammarMemory
from sruserve.server.errors import (
    Overloaded,
    ServeError,
)
from tests.server.engine.constrained.grammar_processes import Grammars, begun


def test_what_all_hold_together_is_bounded_and_the_largest_ends(grammars: Grammars) -> None:
    few = Grammars(most_bytes=16 << 20)
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
        assert few.memory.held_bytes <= 16 << 20
        assert position.advance(97)
        assert position.problem is None
    finally:
        few.host.close()


class Held:
    """A process that says that it holds so much."""

    def __init__(self, owner: str, held_bytes: int) -> None:
        self.owner, self.held_bytes = owner, held_bytes
        self.ended = False

    def end(self, reason: ServeError | None = None) -> None:
        assert isinstance(reason, Overloaded)
        self.ended = True


def test_the_largest_of_the_owner_who_holds_most_in_all_ends() -> None:
    memory = GrammarMemory(60 << 20)
    crowd = [Held("many", size << 20) for size in (6, 8, 7, 5)]
    alone = Held("one", 20 << 20)
    for holder in (*crowd, alone):
        memory.add(holder)
    memory.check()
    assert [holder.ended for holder in (*crowd, alone)] == [False, True, False, False, False]
    memory.check()
    assert sum(holder.ended for holder in crowd) == 1
