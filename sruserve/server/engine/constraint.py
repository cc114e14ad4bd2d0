"""What a completion's text has to match: a regular expression, or a JSON schema."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from math import lcm
from typing import TYPE_CHECKING, Any, Self

from llguidance import LLMatcher, regex_to_lark

from sruserve.server.engine.alphabet import Alphabet
from sruserve.server.engine.constrained import IDENTITY_BYTES
from sruserve.server.engine.matching import compiled, following, refusal
from sruserve.server.engine.spelling import Spelling
from sruserve.server.engine.witness import Work, witness
from sruserve.server.errors import ConstraintUnsatisfiable, InvalidRequest, StateTampered

if TYPE_CHECKING:  # it is of the library's stubs alone
    from llguidance._lib import JsonCompileOptions

_MOST_PATTERN = 8192  # characters
_MOST_SCHEMA = 32_768  # characters
_MOST_PATTERNS = 64  # of a schema
_MOST_MULTIPLE = 10_000
_FIRST_WORK = 10_000  # steps of the search for a first match
_REPLAYED = 256  # bytes that are read with the fuel of one step
_ANY = "(?s:.*)"
_UNSPELLABLE = "the model's vocabulary cannot spell any text that matches; allow other characters"
_COMPACT: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
}


@dataclass(frozen=True, slots=True)
class Constraint:
    """Compiled once, for the alphabet of one model; from any thread.

    identity: of the pattern or schema, so that a state can say which one its position is of.
    way: bytes that match, where dead ends have to be searched for; None: there are none.
    """

    identity: bytes
    matcher: LLMatcher = field(compare=False, repr=False)
    alphabet: Alphabet = field(compare=False, repr=False)
    way: bytes | None = field(compare=False, repr=False)

    @classmethod
    def regex(cls, pattern: str, alphabet: Alphabet) -> Self:
        """Text that a regular expression of Rust's `regex` crate matches as a whole.

        Raises `InvalidRequest`, or `ConstraintUnsatisfiable` if the model can spell no match.
        """
        matcher, way = _pattern(pattern, alphabet.texts or _ANY), None
        if alphabet.texts is None:
            way = _way(matcher, alphabet)
        elif not following(matcher).any() and not matcher.is_accepting():
            raise ConstraintUnsatisfiable(_UNSPELLABLE)
        return cls(_identity("regex", pattern), matcher, alphabet, way)

    @classmethod
    def json_schema(cls, schema: object, alphabet: Alphabet) -> Self:
        """Compact JSON that a schema describes; raises as `regex` does."""
        text = _checked(schema)
        grammar = json.dumps({**json.loads(text), "x-guidance": _COMPACT})
        matcher = compiled(f"start: %json {grammar}")
        return cls(_identity("json_schema", text), matcher, alphabet, _way(matcher, alphabet))

    def begin(self, spelled: bytes = b"") -> Spelling:
        """The position behind `spelled`; raises `StateTampered` if no match begins so."""
        matcher, way = self.matcher.deep_copy(), self.way
        for first in range(0, len(spelled), _REPLAYED):
            part = spelled[first : first + _REPLAYED]
            if first:
                following(matcher)  # fills up the fuel
            if matcher.try_consume_tokens(list(part)) < len(part):
                raise StateTampered("the state's text does not follow its constraint; start anew")
        if spelled and way is not None:
            way = _way(matcher, self.alphabet)
        return Spelling(matcher, self.alphabet, spelled, way)


def _way(matcher: LLMatcher, alphabet: Alphabet) -> bytes:
    """Bytes that complete the match; raises `ConstraintUnsatisfiable` if none are found."""
    way = witness(matcher, alphabet, Work(_FIRST_WORK))
    if way is None:
        raise ConstraintUnsatisfiable(_UNSPELLABLE)
    return way


def _pattern(pattern: str, texts: str) -> LLMatcher:
    """A matcher of what both expressions match; what is empty of it is known, and no dead end."""
    if len(pattern) > _MOST_PATTERN:
        raise InvalidRequest(f"a regex may have {_MOST_PATTERN} characters; simplify it")
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:  # which the library drops
        raise InvalidRequest("the regex ends in a single backslash; escape it by another one")
    try:
        lark = regex_to_lark(pattern, use_ascii="")
    except ValueError as error:  # no Unicode
        raise refusal(str(error)) from None
    return compiled(f"start: TEXT\nTEXT: /(?:{lark})/ & /{texts}/")


def _checked(schema: object) -> str:
    """A schema as JSON, if it can be compiled in a bounded time."""
    if isinstance(schema, bool):
        if not schema:
            raise ConstraintUnsatisfiable("no JSON is described by the schema 'false'")
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidRequest("a JSON schema is an object, or true or false")
    try:
        text = json.dumps({k: v for k, v in schema.items() if k != "x-guidance"}, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise refusal(str(error)) from None
    if len(text) > _MOST_SCHEMA:
        raise InvalidRequest(f"a schema may have {_MOST_SCHEMA} characters as JSON; simplify it")
    _check_divisors([value for key, value in _members(schema) if key == "multipleOf"])
    patterns = [v for key, v in _members(schema) if key == "pattern" and isinstance(v, str)]
    if len(patterns) > _MOST_PATTERNS:
        raise InvalidRequest(f"a schema may have {_MOST_PATTERNS} patterns; simplify it")
    for pattern in patterns:
        _pattern(pattern, _ANY)
    return text


def _check_divisors(values: list[Any]) -> None:
    """Refuse divisors whose common multiple is large: a lexer has as many states."""
    exact = [Fraction(str(v)) for v in values if type(v) in (int, float)]
    scale = lcm(*(value.denominator for value in exact))
    if lcm(*(int(value * scale) for value in exact)) > _MOST_MULTIPLE:
        raise InvalidRequest(
            f"the common multiple of all 'multipleOf' may be up to {_MOST_MULTIPLE}, in units of "
            "their last digits; simplify it"
        )


def _members(schema: object) -> Iterator[tuple[str, Any]]:
    """All members of all objects in a schema."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield from part.items()
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _identity(kind: str, text: str) -> bytes:
    return sha256(f"{kind}\0{text}".encode()).digest()[:IDENTITY_BYTES]
