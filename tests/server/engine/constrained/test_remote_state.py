"""A text in a process of its own follows its grammar as one beside it does."""

import os
import signal
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.constraint import Constraint
from sruserve.server.errors import (
    InvalidRequest,
)
from tests.server.engine.constrained.constraints import SCHEMAS
from tests.server.engine.constrained.grammar_processes import ALL, Grammars, begun, run


@settings(max_examples=15)
@given(
    constraint=st.sampled_from(
        [("json_schema", schema) for schema in SCHEMAS]
        + [("regex", pattern) for pattern in ("[a-c]{3,9}!", "é+|[^é]{2}", "(?:abc|axq)*")]
    ),
    vocabulary=st.sampled_from([ALL, ByteVocabulary.of_values(b'abcx3" ,.{}[]:-0@\xc3\xa9n')]),
    draws=st.lists(st.tuples(st.integers(0, 255), st.booleans(), st.integers(0, 9))),
)
def test_a_confined_text_has_the_same_options_as_one_that_is_not(
    grammars: Grammars,
    constraint: tuple[str, Any],
    vocabulary: ByteVocabulary,
    draws: list[tuple[int, bool, int]],
) -> None:
    kind, content = constraint
    make = Constraint.regex if kind == "regex" else Constraint.json_schema
    try:
        inside = make(content, vocabulary)
    except InvalidRequest as error:
        with pytest.raises(type(error), match="vocabulary cannot spell"):
            run(grammars.make(kind, content, vocabulary=vocabulary))
        return
    confined = run(grammars.make(kind, content, vocabulary=vocabulary))
    assert confined.identity == inside.identity
    one, other = inside.begin(), begun(confined)
    for draw, settle, kept in draws:
        assert one.allowed_ids.tolist() == other.allowed_ids.tolist()
        if one.ended:
            break
        token = int(one.allowed_ids[draw % len(one.allowed_ids)])
        assert other.expect(token) == token
        assert one.advance(token) == other.advance(token)
        if settle:
            count = min(kept, one.uncommitted)
            one.commit(count)
            other.commit(count)
        assert (one.consumed, one.uncommitted, one.ended) == (
            other.consumed,
            other.uncommitted,
            other.ended,
        )
    one.commit(0)
    again = inside.begin(one.consumed).allowed_ids.tolist()  # it knows of fewer dead ends
    assert begun(confined, one.consumed).allowed_ids.tolist() == again


def test_answers_are_distinguished_and_those_of_texts_that_are_over_are_forgotten(
    grammars: Grammars,
) -> None:
    constraint = grammars.regex("a[bc]|x[yz]")
    one, gone, other = begun(constraint), begun(constraint), begun(constraint)
    one.expect(ord("a"))
    gone.expect(ord("x"))
    other.expect(ord("x"))
    del gone
    assert other.advance(ord("x"))
    assert one.advance(ord("a"))
    assert bytes(other.allowed_ids.tolist()) == b"yz"
    assert bytes(one.allowed_ids.tolist()) == b"bc"
    assert not constraint.process._answers


def test_a_copy_of_a_position_goes_its_own_way(grammars: Grammars) -> None:
    first = grammars.regex("abc(?:de|fg)").begin(b"abc")
    other = first.copy()
    for position in (first, other):
        assert position.ready(time.monotonic() + 60)
    assert first.advance(ord("d"))
    assert other.advance(ord("f"))
    assert (first.consumed, other.consumed) == (b"abcd", b"abcf")
    assert bytes(other.allowed_ids.tolist()) == b"g"


def test_texts_that_end_before_they_are_sent_take_no_memory(grammars: Grammars) -> None:
    constraint = grammars.regex("[a-z]*")
    spelled = b"a" * 31_000
    os.kill(constraint.process.pid, signal.SIGSTOP)
    tracemalloc.start()
    try:
        for _ in range(300):
            texts = [constraint.begin(spelled)]
            texts += [texts[0].copy(), texts[0].copy()]
            assert not any(text.ready(time.monotonic()) for text in texts)
            texts.clear()
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
        os.kill(constraint.process.pid, signal.SIGCONT)
    assert begun(constraint, b"abc").advance(ord("d"))


def test_a_copy_of_a_text_that_ended_before_it_was_sent_begins_by_itself(
    grammars: Grammars,
) -> None:
    constraint = grammars.regex("[a-z]*[0-9]*")
    spelled = b"a" * 30_000
    os.kill(constraint.process.pid, signal.SIGSTOP)
    others = [constraint.begin(spelled) for _ in range(30)]  # more than the socket takes
    first = constraint.begin(spelled + b"1")
    copy = first.copy()
    del first
    others.clear()
    os.kill(constraint.process.pid, signal.SIGCONT)
    assert copy.ready(time.monotonic() + 60)
    assert copy.advance(ord("2"))
    assert copy.consumed == spelled + b"12"


def test_a_token_that_is_late_is_taken_back_alone(grammars: Grammars) -> None:
    constraint_state = begun(grammars.regex("[a-c]{3}[x-z]{3}"))
    assert constraint_state.advance(ord("a"))
    assert constraint_state.advance(ord("b"))
    constraint_state.expect(ord("c"))
    constraint_state.commit(2)
    assert constraint_state.advance(ord("c"))
    assert bytes(constraint_state.allowed_ids.tolist()) == b"xyz"
    constraint_state.commit(0)
    assert constraint_state.consumed == b"ab"
    assert constraint_state.advance(ord("a"))
    assert constraint_state.advance(ord("x"))
    constraint_state.commit(2)
    assert constraint_state.consumed == b"abax"
