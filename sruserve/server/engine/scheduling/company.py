"""Notice whether several tenants use an engine: others may then wait for the end of a step."""

from collections.abc import Collection, Hashable


class Company:
    """The time of the newest request, and that of the newest one of any other tenant.

    seconds: after its request, in which a tenant may send the next one.
    """

    def __init__(self, seconds: float = 1.0) -> None:
        self._seconds = seconds
        self._newest: Hashable = None
        self._newest_until = self._others_until = 0.0

    def note(self, tenant: Hashable, now: float) -> None:
        """Record the arrival of a tenant's request."""
        if tenant != self._newest:
            self._newest, self._others_until = tenant, self._newest_until
        self._newest_until = now + self._seconds

    def expects(self, tenants: Collection[Hashable], now: float) -> bool:
        """Whether a tenant may wait for another one of `tenants`, which are those with work."""
        if len(tenants) > 1:
            return True
        until = self._others_until if self._newest in tenants else self._newest_until
        return now < until
