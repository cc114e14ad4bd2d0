"""The limits and tuning options of an engine that an operator may set."""

from dataclasses import dataclass

from sruserve.model.heads.softmaxes import MAX_NUMBERS


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits and options of one engine; the names give the units.

    state_pool_bytes: states on the device, of running sequences and cached ones.
    state_host_bytes: cached states in host memory, for which the device has no room.
    burst: maximum decode steps for each run of the scheduler (multi-step decoding); 0 is 64 on a
        GPU and 16 on a CPU.
    threads: for the matrix products and the recurrence in large steps; 0 is one per usable core.
    max_block_scores: of a step's outputs that are read at a time; no operator sets it.
    """

    max_batch_tokens: int = 4096
    max_queue_requests: int = 1024
    max_queue_bytes: int = 64 << 20
    state_pool_bytes: int = 256 << 20
    state_host_bytes: int = 0
    burst: int = 0
    flush_ms: float = 10.0
    flush_max_ms: float = 50.0
    threads: int = 0
    max_block_scores: int = MAX_NUMBERS

    @property
    def small(self) -> int:
        """Maximum tokens of a small request. Large requests never delay small ones."""
        return max(1, self.max_batch_tokens // 64)

    @property
    def max_queue_inputs(self) -> int:
        """Inputs that may wait: 64 for each request that may wait; 65,536 by default."""
        return 64 * self.max_queue_requests

    @property
    def max_queue_tokens(self) -> int:
        """Tokens that may wait: one for each 16 queue bytes, at least 1 Mi; 4 Mi by default."""
        return max(1 << 20, self.max_queue_bytes // 16)
