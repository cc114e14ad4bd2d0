"""One step of a server-held stream, and whether it repeats the last one."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256

from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import StepReused, WrongStep
from sruserve.server.offload import LONG_BYTES, Waiter, offload
from sruserve.server.streams.record import StreamRecord
from sruserve.server.streams.step_view import StreamView

Work = Callable[[StreamView], Awaitable[bytes]]
Begin = Callable[[], Awaitable[Snapshot | None]]
Counted = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Step:
    """The arguments of `Streams.step`."""

    number: int | None
    digest: bytes
    work: Work
    last: bool
    checkpoints: int
    begin: Begin | None
    counted: Counted


def is_repeat(record: StreamRecord, step: Step) -> bool:
    """Whether a step was computed already; raises `StepReused` or `WrongStep` if it cannot be."""
    number, expected = step.number, record.step + 1
    if number is None and step.begin is not None and expected != 1:
        raise WrongStep(1, expected)
    if number is None or number == expected:
        return False
    if number != record.step or not record.content:
        raise WrongStep(number, expected)
    if step.digest != record.content:
        raise StepReused(
            f"step {number} was computed with other content: repeat it with exactly the same "
            f"content, or send the next step, {expected}",
            param="step",
        )
    return True


async def digest_of(content: bytes, caller: Waiter) -> bytes:
    """The digest of a step's content. caller: the request, whose client may leave meanwhile."""
    size = len(content)
    return await offload(size > LONG_BYTES, _digest, content, cost=size, caller=caller)


def _digest(content: bytes) -> bytes:
    return sha256(content).digest()
