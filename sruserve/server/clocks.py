"""What tells a server the time. Tests give it clocks that they move."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clocks:
    """Two clocks, in seconds.

    monotonic: never goes back; of the tenants' rates, and of streams in memory.
    epoch: since 1970; of state tokens, which other servers read.
    """

    monotonic: Callable[[], float] = time.monotonic
    epoch: Callable[[], float] = time.time


SYSTEM_CLOCKS = Clocks()
