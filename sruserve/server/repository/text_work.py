"""Where a model's texts are tokenized: on the event loop, on shared threads, or on its own."""

from sruserve.model.text.codec import Codec
from sruserve.model.text.normalized import max_normalized
from sruserve.server.offload import LONG_CHARACTERS, POOL, Offload

# Limits in look-ups of a tokenizer, 0.2 µs each: for a text on the event loop, and for a character
# on the threads that all models share.
_LOOP_WORK, _SHARED_WORK = 1 << 19, 512
# Normalized characters from which a part without a place to cut is tokenized alone. Each takes up
# to 300 bytes until the ids are known, which no other budget counts.
_ALONE = 1 << 17
_CUT = 2 * LONG_CHARACTERS  # other parts are shorter
_LONE = Offload(1)


def pool_for(work: float) -> Offload:
    """The threads for a tokenizer with so many look-ups for a character: one of its own if slow."""
    return POOL if work <= _SHARED_WORK else Offload(1)


def pool_for_part(pool: Offload, codec: Codec, part: str) -> Offload:
    """The threads for a part of a text whose tokenizer has `pool`: one for all large parts.

    part: with the word before it that a state holds.

    They wait in its queue, not on the threads that other texts share. A pool of the tokenizer's own
    has one thread anyway.
    """
    is_large = len(part) > _CUT and max_normalized(codec.growth, part) > _ALONE
    return _LONE if is_large and pool is POOL else pool


def long_characters(work: float) -> int:
    """The characters from which on a text is too long for the event loop."""
    return int(min(LONG_CHARACTERS, _LOOP_WORK / work))
