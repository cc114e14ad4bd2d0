"""Python's garbage collector, kept from work that makes no garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Collect no garbage while the block runs, and never visit what is there at its end.

    An import of torch makes 350,000 objects, of which 2% are garbage. Collections in its midst, and
    those while models are loaded, would visit the others again and again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
