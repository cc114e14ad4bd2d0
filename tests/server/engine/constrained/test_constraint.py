"""Constrained text: whole where it stops, a prefix where it is cut, and never in a dead end."""

import asyncio
import json
import re
import string
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sruserve.model.text import Bytes
from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.constraint import Constraint
from sruserve.server.engine.constrained.protocols import MAX_MATCH_BYTES
from sruserve.server.engine.job import Generated
from sruserve.server.errors import (
    ConstraintUnsatisfiable,
    InvalidRequest,
    StateTampered,
    UnfitInput,
)
from tests.server.engine.driver import Driver, same_state
from tests.support import random_model

ALL = ByteVocabulary.of(Bytes(list(range(256))))
LETTERS = [ord(c) for c in string.ascii_lowercase + " ,.3" if c != "q"]


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("lm") / "bytes"
    with Driver(random_model(folder, vocabulary=list(range(256)))) as driver:
        yield driver
        assert driver.engine.rows == 0, "a row leaked"


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A model of few characters: no 'q', no digit but 3, no quotes, half of a two-byte one."""
    folder = tmp_path_factory.mktemp("lm") / "few"
    with Driver(random_model(folder, vocabulary=[*LETTERS, 0xC3, 0xA9, 0xE2, 0x82])) as driver:
        yield driver
        assert driver.engine.rows == 0, "a row leaked"


def regex(driver: Driver, pattern: str) -> Constraint:
    return Constraint.regex(pattern, ByteVocabulary.of(driver.model.codec))


def schema(driver: Driver, described: object) -> Constraint:
    return Constraint.json_schema(described, ByteVocabulary.of(driver.model.codec))


# no `\w` and `\d`: Unicode grows, and not every library is of the same age
literals = st.sampled_from(
    ["a", "b", "é", "€", "ab ", "q", "3", r"\.", "[a-d]", "[0-9]", "[^x]", "."]
)
patterns = st.recursive(
    literals,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2,3}"])).map(
            lambda p: f"(?:{p[0]}){p[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=30)
@given(
    pattern=patterns,
    seed=st.integers(0, 2**32),
    tokens=st.integers(1, 30),
    cuts=st.lists(st.integers(0, 30), max_size=2),
    temperature=st.sampled_from([0.0, 1.0]),
    full=st.booleans(),
)
def test_a_text_matches_its_regex_or_begins_a_match_in_any_split(
    lm: Driver,
    few: Driver,
    pattern: str,
    seed: int,
    tokens: int,
    cuts: list[int],
    temperature: float,
    full: bool,
) -> None:
    driver = lm if full else few
    try:
        constraint = regex(driver, pattern)
    except ConstraintUnsatisfiable:
        assert not full
        return

    async def run() -> None:
        options: dict[str, Any] = {"constraint": constraint, "temperature": temperature}
        whole, *others = await asyncio.gather(
            driver.generate("a b", tokens, seed, **options),
            driver.generate("a b", tokens, seed),
            driver.generate("b a", tokens, seed, **options),
        )
        assert others[0].text == (await driver.generate("a b", tokens, seed)).text
        spelled = b"".join(driver.model.codec.pieces[token] for token in whole.tokens)  # type: ignore[union-attr]
        if whole.finish_reason == "stop":
            assert re.fullmatch(pattern, whole.text)
        else:
            assert len(whole.tokens) == tokens
            assert constraint.begin(spelled).consumed == spelled
            rest = await driver.generate("", 60, seed, start=whole.state, **options)
            if rest.finish_reason == "stop":
                assert re.fullmatch(pattern, whole.text + rest.text)
        text, state, prompt = "", None, "a b"
        for begin, end in pairwise([0, *sorted(min(cut, tokens) for cut in cuts), tokens]):
            part = await driver.generate(prompt, end - begin, seed, start=state, **options)
            text, state, prompt = text + part.text, part.state, ""
        assert text == whole.text
        assert same_state(state, whole.state)

    asyncio.run(run())


SCHEMAS: list[Any] = [
    {"type": "integer", "minimum": 3, "maximum": 41},
    {"enum": ["abc", "axq", 7, None]},
    {"type": "string", "minLength": 2, "maxLength": 9},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4},
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "n": {"type": "integer"}},
        "required": ["name", "n"],
        "additionalProperties": False,
    },
    {"anyOf": [{"const": "é"}, {"type": "array", "items": {"const": 1}, "maxItems": 2}]},
    {"type": "string", "format": "date"},
    {"type": "string", "pattern": "^[a-f]+@[a-f]{2}$"},
]


@settings(max_examples=25)
@given(
    described=st.sampled_from(SCHEMAS),
    seed=st.integers(0, 2**32),
    cuts=st.lists(st.integers(0, 60), max_size=3),
)
def test_a_text_follows_its_schema_in_any_split(
    lm: Driver, described: dict[str, Any], seed: int, cuts: list[int]
) -> None:
    constraint = schema(lm, described)

    async def run() -> None:
        whole = await lm.generate("a", 60, seed, constraint=constraint)
        if whole.finish_reason == "stop":
            assert_fits(json.loads(whole.text), described)
            assert whole.text == json.dumps(json.loads(whole.text), separators=(",", ":")) or (
                "\\" in whole.text or not whole.text.isascii()
            )
        text, state, prompt = "", None, "a"
        for begin, end in pairwise([0, *sorted(cuts), 60]):
            part = await lm.generate(prompt, end - begin, seed, start=state, constraint=constraint)
            text, state, prompt = text + part.text, part.state, ""
        assert (text, part.finish_reason) == (whole.text, whole.finish_reason)
        assert same_state(state, whole.state)

    asyncio.run(run())


def assert_fits(value: Any, described: dict[str, Any]) -> None:
    """The keywords that these tests use, by the words of their specification."""
    if "anyOf" in described:
        assert value == "é" or value in ([], [1], [1, 1])
    if "enum" in described:
        assert value in described["enum"]
    kinds: dict[str, Any] = {"integer": int, "string": str, "array": list, "object": dict}
    if "type" in described:
        assert isinstance(value, kinds[described["type"]])
        assert not isinstance(value, bool)
    if "minimum" in described:
        assert described["minimum"] <= value <= described["maximum"]
    if isinstance(value, str):
        assert described.get("minLength", 0) <= len(value) <= described.get("maxLength", 99)
        assert re.search(described.get("pattern", ""), value)
        if described.get("format") == "date":
            time.strptime(value, "%Y-%m-%d")
    if isinstance(value, list) and "items" in described and "minItems" in described:
        assert 1 <= len(value) <= 4
        assert all(isinstance(item, bool) for item in value)
    if isinstance(value, dict):
        assert list(value) == ["name", "n"]
        for name, inner in described["properties"].items():
            assert_fits(value[name], inner)


DEAD_ENDS = [
    ("(?:abc|axq)", {"abc"}),
    ("a(?:é|ê)b", {"aéb"}),  # its second bytes: one can be written
    ("x(?:€|y)", {"xy"}),  # the third byte of € is missing
    ("[0-9a]{2}", {"33", "3a", "a3", "aa"}),
]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("pattern", "matches"), DEAD_ENDS)
def test_no_text_steps_where_the_model_cannot_go_on(
    few: Driver, pattern: str, matches: set[str], temperature: float
) -> None:
    async def run() -> None:
        for seed in range(20):
            made = await few.generate(
                "a", 9, seed, constraint=regex(few, pattern), temperature=temperature
            )
            assert (made.finish_reason, made.stop_reason) == ("stop", None)
            assert made.text in matches

    asyncio.run(run())


def test_in_json_no_text_steps_where_the_model_cannot_go_on(tmp_path: Path) -> None:
    vocabulary = [*b'"{}[]:,ab x012', 0xC3, 0xA9]
    described = {
        "anyOf": [
            {"enum": ["abxq", "aé", "ba", "bê", "a€", 20, 29, 9]},
            {
                "type": "object",
                "properties": {"b": {"type": "string", "maxLength": 3}, "q": {"type": "null"}},
                "required": ["b", "q"],
            },
        ]
    }

    async def run(driver: Driver) -> None:
        kinds = set()
        for seed in range(40):
            made = await driver.generate("a", 30, seed, constraint=schema(driver, described))
            assert made.finish_reason == "stop"
            kinds.add(made.text)
        assert kinds == {'"aé"', '"ba"', "20"}

    with Driver(random_model(tmp_path / "lm", vocabulary=vocabulary)) as driver:
        asyncio.run(run(driver))


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
        {"type": "string", "minLength": 10_000},
    ],
)
def test_a_schema_that_nothing_follows_is_refused_at_once(lm: Driver, described: Any) -> None:
    with pytest.raises(ConstraintUnsatisfiable):
        schema(lm, described)
    with pytest.raises(ConstraintUnsatisfiable):
        Constraint.json_schema({"type": "string"}, ByteVocabulary.of(Bytes(LETTERS)))


HOSTILE_PATTERNS = [
    "(", "a\\", "[", "(?=a)", r"(a)\1", r"\bfoo", "\ud800", "(a{1000}){1000}", "(" * 3000,
    "a" * 8193, "(?x)a #", "(a?){1000}a{1000}",
]  # fmt: skip


@pytest.mark.parametrize("pattern", HOSTILE_PATTERNS, ids=lambda pattern: pattern[:12])
def test_a_pattern_that_is_wrong_or_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest):
        Constraint.regex(pattern, ALL)


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


def test_a_model_of_words_is_told_that_it_cannot() -> None:
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


def test_an_empty_match_and_one_that_is_already_whole_end_at_once(lm: Driver) -> None:
    async def run() -> None:
        for constraint in (regex(lm, ""), schema(lm, {"const": 1})):
            made = await lm.generate("ab", 10, constraint=constraint)
            assert (made.text, made.finish_reason) == ("1" * (made.text != ""), "stop")
            again = await lm.generate("", 10, start=made.state, constraint=constraint)
            assert (again.text, again.tokens, again.finish_reason) == ("", [], "stop")
            assert same_state(again.state, made.state)
            anew = await lm.generate("b", 10, start=made.state, constraint=constraint)
            assert anew.text == made.text  # behind a prompt it begins
            free = await lm.generate("", 5, start=made.state)
            assert free.state is not None
            assert (free.state.constraint, free.state.spelled) == (b"", b"")

    asyncio.run(run())


def test_another_constraint_begins_anew_where_a_state_goes_on(lm: Driver) -> None:
    async def run() -> None:
        first = await lm.generate("ab", 2, constraint=regex(lm, "[ab]{5}"))
        assert first.state is not None
        assert first.state.spelled == first.text.encode()
        same = await lm.generate("", 9, start=first.state, constraint=regex(lm, "[ab]{5}"))
        other = await lm.generate("", 9, start=first.state, constraint=regex(lm, "[ab]{4}"))
        assert [len(first.text + same.text), len(other.text)] == [5, 4]

    asyncio.run(run())


@pytest.mark.parametrize("spelled", [b"c", b"abc", b"ababababab" * 1000])
def test_a_position_that_does_not_fit_its_constraint_is_refused(lm: Driver, spelled: bytes) -> None:
    constraint = regex(lm, "[ab]{5}")

    async def run() -> None:
        first = await lm.generate("ab", 2, constraint=constraint)
        assert first.state is not None
        wrong = replace(first.state, spelled=spelled)
        with pytest.raises(StateTampered):
            await lm.generate("", 9, start=wrong, constraint=constraint)

    asyncio.run(run())


def test_a_stop_string_inside_a_burst_takes_the_position_back(lm: Driver) -> None:
    constraint = regex(lm, "(?:[a-d]{3} )+")

    async def run() -> None:
        whole = await lm.generate("a", 40, constraint=constraint)
        stop = whole.text[21:23]
        at = whole.text.find(stop)
        stopped = await lm.generate("a", 40, constraint=constraint, stop=(stop,))
        assert (stopped.text, stopped.stop_reason) == (whole.text[:at], stop)
        assert stopped.state is not None
        assert stopped.state.spelled.decode() == whole.text[: at + 2]
        rest = await lm.generate("", 38 - at, start=stopped.state, constraint=constraint)
        assert whole.text[: at + 2] + rest.text == whole.text
        ended = await lm.generate("a", 9, constraint=regex(lm, "[a-d]z"), stop=("zz",))
        assert (len(ended.text), ended.text[1:], ended.finish_reason) == (2, "z", "stop")

    asyncio.run(run())


def test_a_very_long_match_ends_for_its_length(few: Driver) -> None:
    constraint = regex(few, "[ab]*")

    async def run() -> None:
        first = await few.generate("a", 1, constraint=constraint)
        assert first.state is not None
        late = replace(first.state, spelled=b"a" * (MAX_MATCH_BYTES - 3))
        made = await few.generate("", 10, start=late, constraint=constraint)
        assert (len(made.text), made.finish_reason) == (3, "length")
        over = await few.generate("", 10, start=made.state, constraint=constraint)
        assert (over.text, over.finish_reason) == ("", "length")

    asyncio.run(run())


def test_texts_of_one_constraint_have_a_position_each(lm: Driver) -> None:
    constraint = schema(lm, {"type": "array", "items": {"type": "integer"}, "maxItems": 5})

    async def run() -> None:
        alone = [await lm.generate("a", 60, seed, constraint=constraint) for seed in range(6)]
        together = await asyncio.gather(
            *(lm.generate("a", 60, seed, constraint=constraint) for seed in range(6))
        )
        assert [made.text for made in together] == [made.text for made in alone]
        assert len({made.text for made in alone}) > 1

    asyncio.run(run())


@pytest.mark.parametrize("described", [None, {"enum": ["abc", "axq", 13]}])
def test_a_position_that_is_taken_back_is_the_one_before(described: Any) -> None:
    text = b'"axq"'
    if described is None:
        constraint_state = Constraint.regex('"(?:abc|axq)"|13', ALL).begin()
    else:
        constraint_state = Constraint.json_schema(described, ALL).begin()
    assert constraint_state.advance(text[0])
    constraint_state.commit(1)
    for count in range(len(text)):
        for byte in text[1:]:
            assert constraint_state.advance(byte)
        assert constraint_state.ended
        constraint_state.commit(0)
        assert (constraint_state.consumed, constraint_state.allowed_ids.tolist()) == (b'"', [97]), (
            count
        )
    assert [constraint_state.advance(byte) for byte in b"abc"] == [True] * 3


def test_constraints_are_equal_by_what_they_say() -> None:
    assert Constraint.regex("a+", ALL) == Constraint.regex("a+", ALL)
    assert len({Constraint.regex(p, ALL).identity for p in ("a", "b", "a", "c")}) == 3
    assert len(Constraint.json_schema({}, ALL).identity) == 16
    assert np.array_equal(Constraint.regex("[b]", ALL).begin().allowed_ids, [98])
