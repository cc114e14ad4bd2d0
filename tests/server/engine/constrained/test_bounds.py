"""Grammars that take too much end their own process, and nothing else."""

import asyncio
from typing import Any

import pytest

from sruserve.server.engine.constrained.process_client import Bounds
from sruserve.server.engine.constrained.protocols import MAX_MATCH_BYTES
from sruserve.server.engine.results import Generated
from sruserve.server.errors import (
    InvalidRequest,
    StateTampered,
)
from tests.memory import grows_by_less, malloc_bytes
from tests.server.engine.constrained.grammar_processes import (
    MANY_AT_ONCE,
    Grammars,
    begun,
    is_gone,
    run,
)
from tests.server.engine.driver import Driver
from tests.server.observing import until

HOSTILE: list[tuple[str, Any]] = [
    ("json_schema", MANY_AT_ONCE),
    ("regex", "((a{1000}){1000}){1000}"),
    ("regex", r"(?:\p{L}{1,1000}\p{N}?){1000}(?:\p{Lu}|x){1000}"),
    ("json_schema", {"type": "array", "items": {"type": "integer"}, "minItems": 100_000_000}),
    ("json_schema", {"type": "array", "items": MANY_AT_ONCE}),
]


@pytest.mark.parametrize(("kind", "content"), HOSTILE, ids=lambda value: str(value)[:30])
def test_a_grammar_that_takes_too_much_ends_its_own_process_and_is_refused(
    grammars: Grammars, kind: str, content: Any
) -> None:
    def refuse() -> None:
        with pytest.raises(InvalidRequest):
            run(grammars.make(kind, content))

    assert grows_by_less(8 << 20, malloc_bytes, refuse)
    assert len(grammars.memory) == 0
    assert begun(grammars.regex("a")).allowed_ids.tolist() == [97]


def test_repeated_characters_are_not_walked_through_before_they_are_written(
    grammars: Grammars,
) -> None:
    """`a{100000000}` once took 5 GiB in a minute and a half."""
    bounds = Bounds(compile_seconds=0.5, compile_bytes=16 << 20)
    constraint_state = begun(grammars.regex("xa{100000000}|yb", bounds=bounds))
    for token in b"xaaa":
        assert constraint_state.advance(token)
    assert constraint_state.allowed_ids.tolist() == [97]


def test_a_text_whose_grammar_grows_too_much_fails_alone(lm: Driver, grammars: Grammars) -> None:
    async def both() -> None:
        small = await grammars.make("regex", "[a-z]{1,40}", Bounds(growth_bytes=8 << 20))
        large = await grammars.make("regex", r"(\w{1,80}\s?){1,80}", Bounds(growth_bytes=1 << 20))
        alone = await lm.generate("Hello", 40, constraint=small)
        failed, again = await asyncio.gather(
            lm.generate("Hello", 3000, constraint=large),
            lm.generate("Hello", 40, constraint=small),
            return_exceptions=True,
        )
        assert isinstance(failed, InvalidRequest)
        assert isinstance(again, Generated)
        assert again.text == alone.text
        with pytest.raises(InvalidRequest):
            begun(large)
        assert not large.process.fresh

    run(both())


def test_a_step_that_takes_too_long_ends_its_process(grammars: Grammars) -> None:
    endless = {"type": "array", "items": {"type": "integer"}, "minItems": 100_000_000}
    described = {"anyOf": [{"const": "s"}, endless]}
    constraint = run(grammars.make("json_schema", described, Bounds(step_seconds=0.004)))
    constraint_state = begun(constraint)
    constraint_state.advance(ord("["))
    if constraint_state.problem is None:  # it had answered before the kernel's next tick
        until(lambda: is_gone(constraint.process.pid))
        constraint_state.advance(ord('"'))
    assert isinstance(constraint_state.problem, InvalidRequest)
    assert constraint_state.ended
    until(lambda: is_gone(constraint.process.pid))


def test_a_text_earns_the_time_of_its_steps(grammars: Grammars) -> None:
    def taken(bounds: Bounds) -> int:
        constraint = run(grammars.make("regex", "[a-z ]{18000}", bounds))
        constraint_state = begun(constraint)
        for count in range(4000):
            if constraint_state.problem is not None:
                return count
            constraint_state.advance(ord("a"))
            constraint_state.commit(1)
        return 4000

    assert taken(Bounds()) == 4000
    assert taken(Bounds(step_seconds=0.004, earned_seconds=1e-6)) < 4000


def test_a_long_text_is_read_again_with_the_fuel_of_many_steps(grammars: Grammars) -> None:
    spelled = b"ab c" * 4000
    constraint = grammars.regex("[a-z ]{18000}")
    assert begun(constraint, spelled).consumed == spelled
    whole = run(grammars.make("json_schema", {"type": "array", "items": {"type": "integer"}}))
    longest = (b"[" + b"1," * MAX_MATCH_BYTES)[:MAX_MATCH_BYTES]
    assert begun(whole, longest).length == MAX_MATCH_BYTES
    with pytest.raises(StateTampered):
        begun(constraint, b"ab9")
    assert begun(constraint, b"ab").length == 2


def test_positions_of_texts_that_are_over_are_forgotten(grammars: Grammars) -> None:
    """All of the positions, of 2,000 bytes each, would take more than the process may."""
    constraint = run(
        grammars.make(
            "json_schema",
            {"type": "array", "items": {"type": "integer"}},
            Bounds(growth_bytes=6 << 20),
        )
    )
    for _ in range(300):
        assert begun(constraint, b"[" + b"1," * 1000).length == 2001
