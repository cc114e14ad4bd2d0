"""The clocks of a server. Tests replace them by clocks that they move."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clocks:
    """Two clocks, in seconds.

    monotonic: never decreases; for the tenants' rates and for streams in memory.
    epoch: since 1970; for state tokens, which other servers read.
    """

    monotonic: Callable[[], float] = time.monotonic
    epoch: Callable[[], float] = time.time


SYSTEM_CLOCKS = Clocks()
