"""How full the fullest engine of a model is.

Every version of a model has an engine with limits of its own. So a sum over the engines does not
say whether one of them refuses requests.
"""

from threading import Lock

from prometheus_client import Gauge

_lock = Lock()  # engines have threads of their own
_engines: dict[Gauge, dict["Fill", float]] = {}


class Fill:
    """One engine's share of its limit; the gauge has the largest share of the model's engines."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._used = self._limit = 0

    def limit(self, limit: int) -> None:
        """Set the limit, once."""
        self._limit = limit
        self._report()

    def set(self, used: int) -> None:
        """Set what is used of the limit."""
        if used != self._used:  # set after most steps, and mostly unchanged
            self._used = used
            self._report()

    def ended(self) -> None:
        """Leave the engine out from now on."""
        self._limit = 0
        self._report()

    def _report(self) -> None:
        with _lock:
            shares = _engines.setdefault(self._gauge, {})
            if self._limit:
                shares[self] = self._used / self._limit
            else:
                shares.pop(self, None)
            self._gauge.set(max(shares.values(), default=0))
