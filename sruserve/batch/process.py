"""Tune the interpreter of a process that does nothing but a run."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# The engine waits for the interpreter after each step; by default, a thread keeps it for 5 ms.
_SWITCH_SECONDS = 0.001


@contextmanager
def own_process() -> Iterator[None]:
    """Let the engine have the interpreter soon; the block begins once the model is loaded."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.freeze()  # the garbage collector need not visit the loaded model again
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(interval)
