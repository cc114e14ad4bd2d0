"""What an operator may bound or tune of an engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one engine; sizes in tokens, requests, bytes and milliseconds as named.

    state_pool_bytes: of the states on the device: of running streams and of kept ones.
    state_host_bytes: of the kept states that there is no room for on the device.
    burst: most decode steps before the scheduler looks at its queue again.
    threads: of the matrix products and the recurrence in large steps; 0 is one per core.
    """

    max_batch_tokens: int = 4096
    max_queue_requests: int = 1024
    max_queue_bytes: int = 64 << 20
    state_pool_bytes: int = 256 << 20
    state_host_bytes: int = 0
    burst: int = 16
    flush_ms: float = 10.0
    flush_max_ms: float = 50.0
    threads: int = 0

    @property
    def small(self) -> int:
        """Tokens of a request that is small: large ones never delay it."""
        return max(1, self.max_batch_tokens // 64)

    @property
    def max_queue_inputs(self) -> int:
        """Inputs that may wait: 64 for each request that may, 65,536 by default."""
        return 64 * self.max_queue_requests

    @property
    def max_queue_tokens(self) -> int:
        """Tokens that may wait: one for each 16 bytes, 4 Mi by default, and 1 Mi at least."""
        return max(1 << 20, self.max_queue_bytes // 16)
