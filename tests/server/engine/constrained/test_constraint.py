"""Constrained text: whole where it stops, a prefix where it is cut, and never in a dead end."""

import asyncio
import json
import re
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sruserve.server.engine.constrained.constraint import Constraint
from sruserve.server.engine.constrained.protocols import MAX_MATCH_BYTES
from sruserve.server.errors import (
    ConstraintUnsatisfiable,
)
from tests.server.engine.constrained.constraints import ALL, SCHEMAS, regex, schema
from tests.server.engine.driver import Driver, same_state
from tests.support import random_model

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
def test_no_text_steps_where_the_model_cannot_continue(
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


def test_in_json_no_text_steps_where_the_model_cannot_continue(tmp_path: Path) -> None:
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


def test_an_empty_match_and_one_that_is_already_whole_end_at_once(lm: Driver) -> None:
    async def run() -> None:
        for constraint in (regex(lm, ""), schema(lm, {"const": 1})):
            made = await lm.generate("ab", 10, constraint=constraint)
            assert (made.text, made.finish_reason) == ("1" * (made.text != ""), "stop")
            again = await lm.generate("", 10, start=made.state, constraint=constraint)
            assert (again.text, list(again.tokens), again.finish_reason) == ("", [], "stop")
            assert same_state(again.state, made.state)
            anew = await lm.generate("b", 10, start=made.state, constraint=constraint)
            assert anew.text == made.text  # behind a prompt it begins
            free = await lm.generate("", 5, start=made.state)
            assert free.state is not None
            assert (free.state.constraint, free.state.consumed) == (b"", b"")

    asyncio.run(run())


def test_another_constraint_begins_anew_where_a_state_continues(lm: Driver) -> None:
    async def run() -> None:
        first = await lm.generate("ab", 2, constraint=regex(lm, "[ab]{5}"))
        assert first.state is not None
        assert first.state.consumed == first.text.encode()
        same = await lm.generate("", 9, start=first.state, constraint=regex(lm, "[ab]{5}"))
        other = await lm.generate("", 9, start=first.state, constraint=regex(lm, "[ab]{4}"))
        assert [len(first.text + same.text), len(other.text)] == [5, 4]

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
        assert stopped.state.consumed.decode() == whole.text[: at + 2]
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
        late = replace(first.state, consumed=b"a" * (MAX_MATCH_BYTES - 3))
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
