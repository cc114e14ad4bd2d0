"""The record of a server-held stream: what is known of it between two steps."""

from base64 import urlsafe_b64encode
from dataclasses import dataclass, replace
from typing import Self

from sruserve.server.auth import Tenant
from sruserve.server.errors import StreamUnknown
from sruserve.server.seeds import random_bytes

Key = tuple[bytes, str]
"""A stream among those of all tenants: the id of its tenant, and its own."""


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream between two steps. Its states are with the store.

    seed: of its first sampling, so that a step that is retried gives the same text.
    created, expires_at: seconds since the epoch.
    step: number of its last step; 0: the stream had none.
    weights: of its states, as `Binding.weights`; empty: unknown.
    content, reply: the SHA-256 of that step's request, and its reply; empty after a rewind.
        The record contains the reply only before it is stored; later use `StreamStore.reply`.
    ended: no step follows; the last step can still be repeated.
    checkpoints: the steps, in order, to which the stream can be rewound; the last one is `step`.
    """

    id: str
    tenant: Tenant
    model: str
    seed: int
    idle_seconds: int
    created: int
    expires_at: float = 0.0
    step: int = 0
    content: bytes = b""
    reply: bytes = b""
    ended: bool = False
    checkpoints: tuple[int, ...] = (0,)
    weights: str = ""

    def after(self, content: bytes, reply: bytes, max_checkpoints: int, *, ended: bool) -> Self:
        """The stream after its next step."""
        return type(self)(  # at half the cost of `replace`, in each step
            self.id,
            self.tenant,
            self.model,
            self.seed,
            self.idle_seconds,
            self.created,
            self.expires_at,
            self.step + 1,
            content,
            reply,
            ended,
            () if ended else self.checkpoints_after(max_checkpoints),
            self.weights,
        )

    def checkpoints_after(self, limit: int) -> tuple[int, ...]:
        """The checkpoints after its next step, at most `limit`."""
        return (*self.checkpoints, self.step + 1)[-limit:]

    def rewound_to(self, step: int) -> Self:
        """The stream as it was after one of its checkpoints."""
        remaining = tuple(number for number in self.checkpoints if number <= step)
        return replace(self, step=step, content=b"", reply=b"", checkpoints=remaining)

    def fork(self, stream_id: str, created: int) -> Self:
        """Another stream with the same state and step number."""
        return replace(
            self,
            id=stream_id,
            created=created,
            content=b"",
            reply=b"",
            checkpoints=(self.step,),
        )


def key_of(record: StreamRecord) -> Key:
    """The key of a stream."""
    return record.tenant.id, record.id


def new_id() -> str:
    """A random id of a stream, for URLs."""
    return urlsafe_b64encode(random_bytes()).rstrip(b"=").decode()


def alive(record: StreamRecord) -> StreamRecord:
    """A stream that has not ended; raises `StreamUnknown`."""
    if record.ended:
        raise StreamUnknown("the stream has ended; create another one")
    return record
