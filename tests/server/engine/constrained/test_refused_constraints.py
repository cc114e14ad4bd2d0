"""Constraints that are wrong, too large, or that no text of the model follows are refused."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sruserve.model.text.byte_values import Bytes
from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.constraint import Constraint
from sruserve.server.engine.results import Generated
from sruserve.server.errors import (
    ConstraintUnsatisfiable,
    InvalidRequest,
    StateTampered,
    UnfitInput,
)
from tests.server.engine.constrained.constraints import ALL, LETTERS, regex, schema
from tests.server.engine.driver import Driver


@pytest.mark.parametrize("pattern", ["q", "[a-z]{20}q", "ê", "€", "(?:4|5)+", "ë+"])
def test_what_the_model_cannot_spell_is_refused_at_once(few: Driver, pattern: str) -> None:
    with pytest.raises(ConstraintUnsatisfiable):
        regex(few, pattern)


@pytest.mark.parametrize(
    "described",
    [
        False,
        {"$ref": "#"},
        {"type": "integer", "minimum": 3, "maximum": 2},
    ],
)
def test_a_schema_that_nothing_follows_is_refused_at_once(lm: Driver, described: Any) -> None:
    with pytest.raises(ConstraintUnsatisfiable):
        schema(lm, described)
    with pytest.raises(ConstraintUnsatisfiable):
        Constraint.json_schema({"type": "string"}, ByteVocabulary.of(Bytes(LETTERS)))


HOSTILE_PATTERNS = [
    "(", "a\\", "[", "(?=a)", r"(a)\1", r"\bfoo", "\ud800", "(a{1000}){1000}", "(" * 3000,
    "a" * 8193, "a)|(?:b", "(a?){1000}a{1000}",
]  # fmt: skip


@pytest.mark.parametrize("pattern", HOSTILE_PATTERNS, ids=lambda pattern: pattern[:12])
def test_a_pattern_that_is_wrong_or_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest):
        Constraint.regex(pattern, ALL)


@pytest.mark.parametrize("pattern", ["(?x)\n foo\n", "(?x)a\tb", "(?ix-s: a\r)", r"\\(?x)" + "\n"])
def test_line_breaks_and_tabs_that_a_pattern_ignores_are_refused_by_name(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match="sets the flag x and has line breaks or tabs"):
        Constraint.regex(pattern, ALL)


IGNORED = [
    ("(?x) foo # first", "foo"), ("(?x)a #", "a"), ("(?x: a b )c d", "abc d"), ("(?x)a[ b]", "ab"),
    ("(?-x)a\nb", "a\nb"), ("a\nb", "a\nb"), ("(?P<x>a)\tb", "a\tb"), (r"\(x:" + "\n", "(x:\n"),
    (r"\(?x:" + "\n", "(x:\n"), ("", ""), ("a|(?x)b  c", "bc"), ("/", "/"), (r"\/i", "/i"),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "text"), IGNORED)
def test_a_pattern_ignores_what_its_flags_say(pattern: str, text: str) -> None:
    state = Constraint.regex(pattern, ALL).begin(text.encode())
    assert state.ended


def nested(levels: int) -> Any:
    described: Any = {"type": "string"}
    for _ in range(levels):
        described = {"type": "array", "items": described}
    return described


HOSTILE_SCHEMAS: list[Any] = [
    None, 3, [], "{}", {"type": "nope"}, {"type": 3}, {"a": float("nan"), "minimum": 1e999},
    nested(200), {"$ref": "http://127.0.0.1:1/x"}, {"$ref": "#/nowhere"},
    {"type": "integer", "multipleOf": 1234567},
    {"allOf": [{"type": "integer", "multipleOf": 997}, {"multipleOf": 991}]},
    {"type": "number", "multipleOf": 1e-300},
    {"type": "string", "pattern": "(a{1000}){1000}"},
    {"enum": ["x" * 40_000]},
    {"anyOf": [{"type": "string", "pattern": f"a{{{n}}}"} for n in range(65)]},
    {"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in "ab"]} for i in range(12)]},
]  # fmt: skip


@pytest.mark.parametrize("described", HOSTILE_SCHEMAS, ids=lambda described: repr(described)[:30])
def test_a_schema_that_is_wrong_or_too_large_is_refused(described: Any) -> None:
    with pytest.raises(InvalidRequest):
        Constraint.json_schema(described, ALL)


@settings(max_examples=60)
@given(pattern=st.text(max_size=12))
def test_any_text_is_a_pattern_or_refused(pattern: str) -> None:
    try:
        constraint = Constraint.regex(pattern, ALL)
    except InvalidRequest:
        return
    constraint.begin()


def test_a_model_whose_pieces_are_no_bytes_takes_no_constraint() -> None:
    words = Bytes([97, 98])
    words.pieces = (b" a", b" b")
    for codec in (words, None):
        with pytest.raises(UnfitInput) as refused:
            ByteVocabulary.of(codec)
        assert refused.value.code == "constraint_unsupported"


def test_a_pattern_that_becomes_too_intricate_fails_its_request_and_nobody_elses(
    lm: Driver,
) -> None:
    async def run() -> None:
        hard = regex(lm, r"(\w{1,80}\s?){1,80}")
        alone = await lm.generate("Hello", 60)
        failed, again = await asyncio.gather(
            lm.generate("Hello", 3000, constraint=hard),
            lm.generate("Hello", 60),
            return_exceptions=True,
        )
        assert isinstance(failed, InvalidRequest)
        assert isinstance(again, Generated)
        assert again.text == alone.text

    asyncio.run(run())


@pytest.mark.parametrize("consumed", [b"c", b"abc", b"ababababab" * 1000])
def test_a_position_that_does_not_fit_its_constraint_is_refused(
    lm: Driver, consumed: bytes
) -> None:
    constraint = regex(lm, "[ab]{5}")

    async def run() -> None:
        first = await lm.generate("ab", 2, constraint=constraint)
        assert first.state is not None
        wrong = replace(first.state, consumed=consumed)
        with pytest.raises(StateTampered):
            await lm.generate("", 9, start=wrong, constraint=constraint)

    asyncio.run(run())
