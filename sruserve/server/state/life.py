"""When the last state of some weights can no longer arrive."""


class StateLife:
    """The states of one model's weights that may still arrive, of all tenants together.

    sealed_at, stored_at: when a state was last sealed for a client, and a stream last changed in a
        store outside this process, in seconds since the epoch. Both begin with the present, because
        states may be older than this process.
    held_at: when a socket or a stream in this process's memory last began or got a state.
    refcount: open sockets, and streams in this process's memory.
    """

    __slots__ = ("held_at", "refcount", "sealed_at", "stored_at")

    def __init__(self, now: float) -> None:
        self.sealed_at = self.stored_at = self.held_at = now
        self.refcount = 0

    @property
    def last_at(self) -> float:
        """When the last state was made, wherever it is."""
        return max(self.sealed_at, self.stored_at, self.held_at)

    def is_over(self, now: float, ttl_seconds: int, idle_seconds: int) -> bool:
        """Whether no state can arrive any more.

        ttl_seconds: the life of a token; 0: unlimited. idle_seconds: the longest life of a stored
        stream without a step.
        """
        tokens_over = ttl_seconds > 0 and now >= self.sealed_at + ttl_seconds
        return not self.refcount and tokens_over and now >= self.stored_at + idle_seconds
