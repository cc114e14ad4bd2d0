"""A constraint on the text of a completion: a regular expression or a JSON schema."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Self

from llguidance import LLMatcher

from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.completion_search import (
    NO_GUESSES,
    Guesses,
    SearchBudget,
    find_completion,
)
from sruserve.server.engine.constrained.grammar import allowed_bytes, compile_matcher
from sruserve.server.engine.constrained.patterns import (
    ANY_TEXT,
    check_flags,
    pattern_matcher,
    shortest_match,
)
from sruserve.server.engine.constrained.protocols import IDENTITY_BYTES
from sruserve.server.engine.constrained.schemas import pattern_strings, schema_text
from sruserve.server.engine.constrained.state import ConstraintState
from sruserve.server.errors import ConstraintUnsatisfiable, InvalidRequest, StateTampered

if TYPE_CHECKING:  # only the library's stubs define it
    from llguidance._lib import JsonCompileOptions

_SHORT_SEARCH_STEPS = 256  # of the search for a first match without guesses
_FIRST_SEARCH_STEPS = 10_000
_REPLAY_BYTES = 256  # bytes that are replayed with the fuel of one step
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
    guesses: for these searches.
    """

    identity: bytes
    matcher: LLMatcher = field(compare=False, repr=False)
    vocabulary: ByteVocabulary = field(compare=False, repr=False)
    completion: bytes | None = field(compare=False, repr=False)
    guesses: Guesses = field(default=NO_GUESSES, compare=False, repr=False)

    @classmethod
    def regex(cls, pattern: str, vocabulary: ByteVocabulary) -> Self:
        """A regular expression of Rust's `regex` crate that must match the whole text.

        Raises `InvalidRequest`, or `ConstraintUnsatisfiable` if the model can write no match.
        """
        check_flags(pattern)
        writable_text = vocabulary.text_pattern
        matcher = pattern_matcher(pattern, writable_text or ANY_TEXT)
        identity = _identity("regex", pattern)
        if writable_text is None:

            def guess() -> Guesses:
                return Guesses(matches=(shortest_match([pattern], vocabulary).encode(),))

            return cls(identity, matcher, vocabulary, *_searched(matcher, vocabulary, guess))
        if not allowed_bytes(matcher).any() and not matcher.is_accepting():
            raise ConstraintUnsatisfiable(_NO_MATCH)
        return cls(identity, matcher, vocabulary, None)

    @classmethod
    def json_schema(cls, schema: object, vocabulary: ByteVocabulary) -> Self:
        """Compact JSON that a schema describes; raises the errors of `regex`."""
        text = schema_text(schema)
        grammar = json.dumps({**json.loads(text), "x-guidance": _COMPACT_JSON})
        matcher = compile_matcher(f"start: %json {grammar}")

        def guess() -> Guesses:
            return Guesses(strings=pattern_strings(schema, vocabulary))

        completion = _searched(matcher, vocabulary, guess)
        return cls(_identity("json_schema", text), matcher, vocabulary, *completion)

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
            completion = _required_completion(
                matcher, self.vocabulary, _FIRST_SEARCH_STEPS, self.guesses
            )
        return ConstraintState(matcher, self.vocabulary, consumed, completion, self.guesses)


def _searched(
    matcher: LLMatcher, vocabulary: ByteVocabulary, guess: Callable[[], Guesses]
) -> tuple[bytes, Guesses]:
    """Find a first match, and the guesses that it took: none if the search is short."""
    try:
        short = _required_completion(matcher, vocabulary, _SHORT_SEARCH_STEPS, NO_GUESSES)
    except ConstraintUnsatisfiable:
        raise
    except InvalidRequest:  # the search was too long
        guesses = guess()
        return _required_completion(matcher, vocabulary, _FIRST_SEARCH_STEPS, guesses), guesses
    return short, NO_GUESSES


def _required_completion(
    matcher: LLMatcher, vocabulary: ByteVocabulary, steps: int, guesses: Guesses
) -> bytes:
    """Find bytes that complete the match.

    Raises `ConstraintUnsatisfiable` if there are none, and `InvalidRequest` if the search takes
    more steps.
    """
    completion = find_completion(matcher, vocabulary, SearchBudget(steps), guesses)
    if completion is None:
        raise ConstraintUnsatisfiable(_NO_MATCH)
    return completion


def _identity(kind: str, text: str) -> bytes:
    return sha256(f"{kind}\0{text}".encode()).digest()[:IDENTITY_BYTES]
