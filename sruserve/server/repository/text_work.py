"""Where a model's texts are tokenized: on the event loop, on shared threads, or on its own."""

from sruserve.server.offload import POOL, Offload

# Longer texts are tokenized on another thread, so that they never block the event loop.
LONG_CHARACTERS = 8 << 10
# Limits in look-ups of a tokenizer, 0.2 µs each: for a text on the event loop, and for a character
# on the threads that all models share.
_LOOP_WORK, _SHARED_WORK = 1 << 19, 512


def pool_for(work: float) -> Offload:
    """The threads for a tokenizer with so many look-ups for a character: one of its own if slow."""
    return POOL if work <= _SHARED_WORK else Offload(1)


def long_characters(work: float) -> int:
    """The characters from which on a text is too long for the event loop."""
    return int(min(LONG_CHARACTERS, _LOOP_WORK / work))
