"""A constraint on the text of a completion: a regular expression or a JSON schema."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from math import lcm
from typing import TYPE_CHECKING, Any, Self

from llguidance import LLMatcher, regex_to_lark

from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.completion_search import SearchBudget, find_completion
from sruserve.server.engine.constrained.grammar import allowed_bytes, compile_matcher, grammar_error
from sruserve.server.engine.constrained.protocols import IDENTITY_BYTES
from sruserve.server.engine.constrained.state import ConstraintState
from sruserve.server.errors import ConstraintUnsatisfiable, InvalidRequest, StateTampered

if TYPE_CHECKING:  # only the library's stubs define it
    from llguidance._lib import JsonCompileOptions

_MAX_PATTERN_LENGTH = 8192  # characters
_MAX_SCHEMA_LENGTH = 32_768  # characters
_MAX_PATTERNS = 64  # in a schema
_MAX_MULTIPLE = 10_000
_FIRST_SEARCH_STEPS = 10_000  # of the search for a first match
_REPLAY_BYTES = 256  # bytes that are replayed with the fuel of one step
_ANY_TEXT = "(?s:.*)"
_NO_MATCH = "the model's vocabulary cannot spell any text that matches; allow other characters"
_COMPACT_JSON: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
}


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint compiled for the vocabulary of one model, for use from any thread.

    identity: names the pattern or schema, so that a state can name the constraint it follows.
    completion: bytes that match, if dead ends have to be searched for; None: no dead ends exist.
    """

    identity: bytes
    matcher: LLMatcher = field(compare=False, repr=False)
    vocabulary: ByteVocabulary = field(compare=False, repr=False)
    completion: bytes | None = field(compare=False, repr=False)

    @classmethod
    def regex(cls, pattern: str, vocabulary: ByteVocabulary) -> Self:
        """A regular expression of Rust's `regex` crate that must match the whole text.

        Raises `InvalidRequest`, or `ConstraintUnsatisfiable` if the model can write no match.
        """
        writable_text = vocabulary.text_pattern
        matcher, completion = _pattern_matcher(pattern, writable_text or _ANY_TEXT), None
        if writable_text is None:
            completion = _required_completion(matcher, vocabulary)
        elif not allowed_bytes(matcher).any() and not matcher.is_accepting():
            raise ConstraintUnsatisfiable(_NO_MATCH)
        return cls(_identity("regex", pattern), matcher, vocabulary, completion)

    @classmethod
    def json_schema(cls, schema: object, vocabulary: ByteVocabulary) -> Self:
        """Compact JSON that a schema describes; raises the errors of `regex`."""
        text = _schema_text(schema)
        grammar = json.dumps({**json.loads(text), "x-guidance": _COMPACT_JSON})
        matcher = compile_matcher(f"start: %json {grammar}")
        completion = _required_completion(matcher, vocabulary)
        return cls(_identity("json_schema", text), matcher, vocabulary, completion)

    def begin(self, consumed: bytes = b"") -> ConstraintState:
        """The state after `consumed`; raises `StateTampered` if no match begins with it."""
        matcher, completion = self.matcher.deep_copy(), self.completion
        for first in range(0, len(consumed), _REPLAY_BYTES):
            part = consumed[first : first + _REPLAY_BYTES]
            if first:
                allowed_bytes(matcher)  # refills the fuel
            if matcher.try_consume_tokens(list(part)) < len(part):
                raise StateTampered("the state's text does not follow its constraint; start anew")
        if consumed and completion is not None:
            completion = _required_completion(matcher, self.vocabulary)
        return ConstraintState(matcher, self.vocabulary, consumed, completion)


def _required_completion(matcher: LLMatcher, vocabulary: ByteVocabulary) -> bytes:
    """Find bytes that complete the match; raises `ConstraintUnsatisfiable` without success."""
    completion = find_completion(matcher, vocabulary, SearchBudget(_FIRST_SEARCH_STEPS))
    if completion is None:
        raise ConstraintUnsatisfiable(_NO_MATCH)
    return completion


def _pattern_matcher(pattern: str, writable_text: str) -> LLMatcher:
    """A matcher of the intersection of two expressions.

    The library knows which parts of the intersection are empty, so that they are no dead ends.
    """
    if len(pattern) > _MAX_PATTERN_LENGTH:
        raise InvalidRequest(
            f"a regex may have {_MAX_PATTERN_LENGTH} characters at most; simplify it"
        )
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:  # the library would drop the last one
        raise InvalidRequest("the regex ends in a single backslash; escape it with another one")
    try:
        lark = regex_to_lark(pattern, use_ascii="")
    except ValueError as error:  # the pattern is no Unicode
        raise grammar_error(str(error)) from None
    return compile_matcher(f"start: TEXT\nTEXT: /(?:{lark})/ & /{writable_text}/")


def _schema_text(schema: object) -> str:
    """A schema as JSON text; raises if compiling it could take an unbounded time."""
    if isinstance(schema, bool):
        if not schema:
            raise ConstraintUnsatisfiable("no JSON matches the schema 'false'")
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidRequest("a JSON schema must be an object, true or false")
    try:
        text = json.dumps({k: v for k, v in schema.items() if k != "x-guidance"}, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise grammar_error(str(error)) from None
    if len(text) > _MAX_SCHEMA_LENGTH:
        raise InvalidRequest(
            f"a schema may have {_MAX_SCHEMA_LENGTH} characters of JSON at most; simplify it"
        )
    _check_divisors([value for key, value in _members(schema) if key == "multipleOf"])
    patterns = [v for key, v in _members(schema) if key == "pattern" and isinstance(v, str)]
    if len(patterns) > _MAX_PATTERNS:
        raise InvalidRequest(f"a schema may have {_MAX_PATTERNS} patterns at most; simplify it")
    for pattern in patterns:
        try:
            _pattern_matcher(pattern, _ANY_TEXT)
        except InvalidRequest as error:
            error.message = error.message.replace("the regex", "the regex in 'pattern'", 1)
            raise
    return text


def _check_divisors(values: list[Any]) -> None:
    """Refuse divisors with a large common multiple: the lexer needs that many states."""
    exact = [Fraction(str(v)) for v in values if type(v) in (int, float)]
    scale = lcm(*(value.denominator for value in exact))
    if lcm(*(int(value * scale) for value in exact)) > _MAX_MULTIPLE:
        raise InvalidRequest(
            "the least common multiple of all 'multipleOf' values, in units of their last digit, "
            f"may be {_MAX_MULTIPLE} at most; simplify them"
        )


def _members(schema: object) -> Iterator[tuple[str, Any]]:
    """All members of all objects in a schema."""
    remaining = [schema]
    while remaining:
        node = remaining.pop()
        if isinstance(node, dict):
            yield from node.items()
            remaining += node.values()
        elif isinstance(node, list):
            remaining += node


def _identity(kind: str, text: str) -> bytes:
    return sha256(f"{kind}\0{text}".encode()).digest()[:IDENTITY_BYTES]
