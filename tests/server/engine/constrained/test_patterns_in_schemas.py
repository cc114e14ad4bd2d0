"""A schema with patterns is followed where the model can spell a match anywhere in a string."""

import json
import re
from random import Random
from typing import Any

import numpy as np
import pytest

from sruserve.model.text.byte_values import Bytes
from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.constraint import Constraint
from sruserve.server.engine.constrained.state import ConstraintState
from sruserve.server.errors import ConstraintUnsatisfiable, InvalidRequest
from tests.server.engine.constrained.constraints import ALL

PATTERNS = [
    "a/b", r"a\/b", "a.b", "foo|bar", "^foo|bar$", "foo|^bar", r"\.com$", "é", "[0-9]{3}-[a-z]{40}",
    "^https://", "^.*foo.*bar$", "(?i)Hello", 'say "no"', "one\nline", "\x01\x02", r"C:\\",
]  # fmt: skip


def string(pattern: str, **others: Any) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern} | others


def text_of(state: ConstraintState, seed: int, vocabulary: ByteVocabulary = ALL) -> str:
    """A random text, which after 20 bytes ends as the search has found."""
    random = Random(seed)
    text = bytearray()
    while not state.ended:
        byte = random.choice(np.flatnonzero(state.options).tolist())
        if len(text) > 20 and state._completion:
            byte = state._completion[0]
        if state.advance(int(vocabulary.ids[byte])):
            text.append(byte)
        state.commit(state.uncommitted)
        if len(text) > 20 and not state._completion:
            break
    assert state.problem is None
    return text.decode(errors="ignore")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_string_has_a_match_of_its_pattern_anywhere(pattern: str) -> None:
    constraint = Constraint.json_schema(string(pattern), ALL)
    for seed in range(5):
        assert re.search(pattern, json.loads(text_of(constraint.begin(), seed)))
    if "^" not in pattern:
        continued = text_of(constraint.begin(b'"xa'), 0)
        assert re.search(pattern, json.loads('"xa' + continued))


def test_a_string_matches_patterns_beside_its_lengths_and_other_patterns() -> None:
    longer = Constraint.json_schema(string("a/b", minLength=30, maxLength=33), ALL)
    both = Constraint.json_schema({"allOf": [string("a/b"), string("c/d", minLength=9)]}, ALL)
    referred = {"$ref": "#/$defs/x", "pattern": "a/b", "$defs": {"x": string("c/d")}}
    for seed in range(5):
        text = json.loads(text_of(longer.begin(), seed))
        assert "a/b" in text
        assert 30 <= len(text) <= 33
        for constraint in (both, Constraint.json_schema(referred, ALL)):
            text = json.loads(text_of(constraint.begin(), seed))
            assert "a/b" in text
            assert "c/d" in text


def test_members_and_their_names_match_patterns_everywhere_in_json() -> None:
    address = {
        "type": "object",
        "properties": {"to": string("@[a-z]+\\.org$"), "via": string("a/b"), "free": True},
        "required": ["to", "via"],
        "additionalProperties": False,
    }
    addresses = Constraint.json_schema({"type": "array", "items": address, "minItems": 2}, ALL)
    named = {
        "type": "object",
        "patternProperties": {"a/b": {"type": "integer"}},
        "additionalProperties": False,
    }
    names = Constraint.json_schema(named, ALL)
    for seed in range(5):
        members = json.loads(text_of(addresses.begin(), seed))
        assert len(members) >= 2
        for one in members:
            assert re.search(r"@[a-z]+\.org$", one["to"])
            assert "a/b" in one["via"]
        assert all("a/b" in name for name in json.loads(text_of(names.begin(), seed)))


def test_all_patterns_that_a_schema_may_have_are_searched_for_within_its_limits() -> None:
    names = [f"ab{number:02}/" for number in range(64)]
    described = {
        "type": "object",
        "properties": {name: string(name) for name in names},
        "required": names,
    }
    text = json.loads(Constraint.json_schema(described, ALL).completion or b"")
    assert all(name in text[name] for name in names)


def test_a_match_is_spelled_with_the_characters_that_the_model_has() -> None:
    spelled = [ord(character) for character in '"\\/nabcu0123456789']
    few = ByteVocabulary.of(Bytes(spelled))
    for pattern, text in [("[^a]/b", r'"0/b"'), ("c\na", r'"c\na"'), ("[é3]{2}/", '"33/"')]:
        assert Constraint.json_schema(string(pattern), few).completion == text.encode()


def test_a_regex_is_followed_by_a_model_whose_characters_are_no_short_class() -> None:
    # every second byte: too many ranges of characters for an expression
    sparse = ByteVocabulary.of(Bytes([*range(128), *range(128, 256, 2)]))
    assert sparse.text_pattern is None
    constraint = Constraint.regex("(?s:.*)ab/cd(?s:.*)", sparse)
    assert constraint.completion == b"ab/cd"
    assert "ab/cd" in text_of(constraint.begin(b"ab/x"), 1, sparse)


@pytest.mark.parametrize("described", [{"type": "string", "minLength": 10_000}, string("é")])
def test_a_search_that_takes_too_long_is_no_proof_that_nothing_matches(described: Any) -> None:
    letters = ByteVocabulary.of(Bytes([ord('"'), *range(97, 123)]))
    with pytest.raises(InvalidRequest, match="takes too many steps; simplify it") as refused:
        Constraint.json_schema(described, letters)
    assert refused.value.code == "invalid_request"
    with pytest.raises(ConstraintUnsatisfiable):
        Constraint.json_schema({"type": "integer"}, letters)
