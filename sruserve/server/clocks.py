"""The clocks of a server. Tests replace them by clocks that they move."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clocks:
    """Two clocks, in seconds.

    monotonic: never decreases; for engines and the deadlines of their jobs, connections, the
        tenants' rates, and the ends of streams in memory.
    epoch: since 1970; for state tokens and streams, of which clients and other servers read times.
    """

    monotonic: Callable[[], float] = time.monotonic
    epoch: Callable[[], float] = time.time


SYSTEM_CLOCKS = Clocks()
