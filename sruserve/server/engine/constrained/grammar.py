"""llguidance over single bytes, with limits and with this server's errors."""

import re
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from sruserve.server.errors import ConstraintUnsatisfiable, InvalidRequest

END = 256  # the token that ends a match
# The search for forced bytes uses no fuel: it would walk through all of `a{100000000}` at once.
_OPTIONS = '%llguidance {"no_forcing": true}\n'
# Fuel and items bound most steps to a few ms; states and sizes bound most of the memory. Building
# the lexer and a single transition of it have no bound here: `process_client.Bounds` sets one.
_LIMITS = LLParserLimits(
    max_items_in_row=2000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=10_000,
    max_lexer_states=20_000,
    max_grammar_size=50_000,
    precompute_large_lexemes=False,
    verbose_errors=False,
)


# What llguidance's message says around its reason: the place in our own grammar, and the pattern.
_PLACE = re.compile(r"at \d+\(\d+\): ")
_PATTERN = re.compile(
    r"invalid regex .* \(in regex\): (?:regex parse error:.*\nerror: )?", re.DOTALL
)
_SCHEMA = "failed to compile JSON schema: "
_MAX_REASON = 300  # characters


class _ByteTokenizer:
    """The tokenizer interface that llguidance expects, over single bytes."""

    eos_token_id, bos_token_id = END, None
    tokens: Sequence[bytes] = (*(bytes([value]) for value in range(256)), b"<end>")
    special_token_ids = (END,)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


_TOKENIZER = LLTokenizer(TokenizerWrapper(_ByteTokenizer()), n_vocab=257, eos_token=END, slices=[])


def compile_matcher(grammar: str) -> LLMatcher:
    """A matcher at the start of a grammar in Lark's notation; raises `InvalidRequest`."""
    matcher = LLMatcher(_TOKENIZER, _OPTIONS + grammar, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        raise grammar_error(matcher.get_error())
    return matcher


def allowed_bytes(matcher: LLMatcher) -> NDArray[np.bool_]:
    """The bytes that may follow, (256), bool: none after a match that has no extension.

    In a dead end there are none either, and the matcher must not be used again. Raises
    `InvalidRequest` if the grammar takes too much fuel or too many items here.
    """
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    allowed = np.unpackbits(bits, bitorder="little")[:END].astype(np.bool_)
    if matcher.is_error() and "NoExtension" not in matcher.get_error():
        raise grammar_error(matcher.get_error())
    return allowed


def grammar_error(reason: str) -> InvalidRequest:
    """The client's error for an error message of llguidance."""
    reason = reason.replace("<non-verbose/>", "").partition("\n   1 | %llguidance")[0]
    reason = _PLACE.sub("", reason, count=1)
    what, pattern = "regex or schema cannot be followed", _PATTERN.match(reason)
    advice = "correct or simplify it"
    if pattern is not None:
        what, advice, reason = "regex cannot be used", "change it", reason[pattern.end() :]
    elif reason.startswith(_SCHEMA):
        what, advice = "JSON schema cannot be used", "change it"
        reason = reason.removeprefix(_SCHEMA)
    message = " ".join(reason.split())[:_MAX_REASON]
    if "unsatisfiable" in message.lower():
        return ConstraintUnsatisfiable(f"no text can match: {message}; correct the regex or schema")
    return InvalidRequest(f"the {what}: {message}; {advice}")
