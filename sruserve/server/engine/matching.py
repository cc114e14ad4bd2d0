"""llguidance over single bytes: bounded, and with this server's errors."""

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from sruserve.server.errors import ConstraintUnsatisfiable, InvalidRequest

END = 256  # the token that ends a match
# Forced bytes are found without fuel: `a{100000000}` would be walked through at once.
_OPTIONS = '%llguidance {"no_forcing": true}\n'
# Fuel and items bound most steps to a few ms, states and sizes most of the memory. Building the
# lexer and one transition of it have no bound: `confined.py` gives them one.
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


class _Bytes:
    """What llguidance asks of a tokenizer."""

    eos_token_id, bos_token_id = END, None
    tokens: Sequence[bytes] = (*(bytes([value]) for value in range(256)), b"<end>")
    special_token_ids = (END,)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


_TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=257, eos_token=END, slices=[])


def compiled(grammar: str) -> LLMatcher:
    """A matcher at the beginning of a grammar in Lark's notation; raises `InvalidRequest`."""
    matcher = LLMatcher(_TOKENIZER, _OPTIONS + grammar, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        raise refusal(matcher.get_error())
    return matcher


def following(matcher: LLMatcher) -> NDArray[np.bool_]:
    """Which bytes may come next, (256); none after a match that is whole, and in a dead end.

    Raises `InvalidRequest` if that is too much to find out. A matcher in a dead end is of no
    further use.
    """
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    allowed = np.unpackbits(bits, bitorder="little")[:END].astype(np.bool_)
    if matcher.is_error() and "NoExtension" not in matcher.get_error():
        raise refusal(matcher.get_error())
    return allowed


def refusal(reason: str) -> InvalidRequest:
    """What a client is told of llguidance's complaint."""
    told = " ".join(reason.replace("<non-verbose/>", "").split())
    told = told.partition(" 1 | %llguidance")[0][:300]  # behind it is a grammar of ours
    if "unsatisfiable" in told.lower():
        return ConstraintUnsatisfiable(f"no text can match: {told}")
    return InvalidRequest(f"the regex or schema cannot be followed: {told}; correct or simplify it")
