"""A clock that stands still until a test moves it."""

import time

from sruserve.server.clocks import Clocks


class HandClock:
    """Seconds since 1970, at first the true ones; `now` is a test's to change."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now

    @property
    def clocks(self) -> Clocks:
        return Clocks(self, self)
