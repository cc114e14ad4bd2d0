"""The limits of one request, and the budgets of requests and replies in memory."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from sruserve.server.budget import Budget, Hold
from sruserve.server.errors import InputTooLong, Overloaded
from sruserve.server.offload import owner
from sruserve.server.settings import Settings
from sruserve.server.tuning import TURN

_TEXT_BYTES = 4  # of UTF-8 that count as one number
# Replies with up to this number of numbers are free, so that small requests are always answered.
FREE_NUMBERS = 256

# Free bytes of each connection beside the budgets, so that small requests are always read.
FREE_BYTES = 16 << 10
NUMBER_BYTES = 8  # of a reply that count as one number
STEP_BYTES = 4 << 10  # of the objects of a stream's step, which may outlive its client


@dataclass(frozen=True)
class InputLimits:
    """The operator's limits of a request, and how long it may wait.

    input_bytes: of one text; also its token ids, or steps of features.
    new_tokens: of all completions of the request together.
    reply_numbers: the numbers of one reply: of its tokens, steps, labels, states and echoed texts.
        While a reply is made, a number takes about 60 bytes of memory.
    unsent_numbers: the same for all replies of a worker that are not sent yet.
    replies: the budget of `unsent_numbers`. A tenant with an API key gets at most half of it.
    queue_bytes: of the bodies that wait.
    reading: a budget of the same size for long complete bodies whose jobs are not in a queue yet.
        A tenant with an API key may use at most as much as it leaves to others.
    steps: a budget of a quarter of that size with the same shares, for the steps of streams whose
        jobs are not in a queue yet. Long bodies do not count here, so they block no short step.
    queue_seconds: 0: no limit.
    clock: the monotonic clock of the engines, in seconds.
    turn_characters: see `Tuning`.
    """

    body_bytes: int
    input_bytes: int
    inputs: int
    new_tokens: int
    reply_numbers: int
    unsent_numbers: int
    queue_bytes: int
    queue_seconds: float
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)
    turn_characters: int = TURN
    replies: Budget = field(init=False, repr=False, compare=False)
    reading: Budget = field(init=False, repr=False, compare=False)
    steps: Budget = field(init=False, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        turn_characters: int = TURN,
    ) -> Self:
        """The limits of the settings."""
        return cls(
            body_bytes=settings.max_body_bytes,
            input_bytes=settings.max_input_bytes,
            inputs=settings.max_inputs,
            new_tokens=settings.max_new_tokens,
            # a reply has about the limit of a request, and all unsent replies that of the queue
            reply_numbers=settings.max_body_bytes // NUMBER_BYTES,
            unsent_numbers=settings.max_queue_bytes // NUMBER_BYTES,
            queue_bytes=settings.max_queue_bytes,
            queue_seconds=settings.queue_timeout_ms / 1000,
            clock=clock,
            turn_characters=turn_characters,
        )

    def __post_init__(self) -> None:
        for name, limit, refuse in (
            ("replies", self.unsent_numbers, _unsent),
            ("reading", self.queue_bytes, _too_many_bytes),
            ("steps", self.queue_bytes // 4, _too_many_bytes),
        ):
            budget = Budget(limit, refuse, share=limit // 2, yields=True)
            object.__setattr__(self, name, budget)

    def deadline(self, timeout_ms: int | None) -> float:
        """When a job of a request that arrives now must have begun, on `clock`; 0: never.

        timeout_ms: the client's own limit.
        """
        seconds = self.queue_seconds
        if timeout_ms is not None:
            seconds = min(seconds or math.inf, timeout_ms / 1000)
        return self.clock() + seconds if seconds else 0.0

    def reserve_reply(self, numbers: int, advice: str) -> Hold:
        """Reserve a reply of about `numbers` numbers before they are computed.

        Results stay in memory until their client has read them, and a short request may have long
        results. Raises `InputTooLong` over the limit of one reply, and `Overloaded` over the limit
        of all replies.

        advice: how to change a request whose reply would be too long.
        """
        if numbers > self.reply_numbers:
            raise InputTooLong(
                f"the reply would have {numbers} numbers, over the limit of {self.reply_numbers}: "
                f"{advice}, or ask the operator to raise SRUSERVE_MAX_BODY_BYTES"
            )
        return self.count_reply(numbers)

    def count_reply(self, numbers: int) -> Hold:
        """Count the numbers of a reply, unless it is small; raises `Overloaded`."""
        hold = Hold(self.replies, owner.get())
        if numbers > FREE_NUMBERS:
            hold.grow(numbers)
        return hold

    def count_body(self, size: int) -> Hold:
        """Count a body that is being read, unless it is short; raises `Overloaded`."""
        return self.reading.hold(size if size > FREE_BYTES else 0, owner.get())

    def count_step(self, size: int) -> Hold:
        """Count a step, including its body if that is short; raises `Overloaded`."""
        return self.steps.hold(STEP_BYTES + (size if size <= FREE_BYTES else 0), owner.get())


def text_numbers(text: str | bytes) -> int:
    """The numbers in a reply that take as many bytes as a text, about."""
    exact = isinstance(text, bytes) or text.isascii()
    return bytes_numbers(len(text)) if exact else len(text)


def bytes_numbers(size: int) -> int:
    """The numbers in a reply that take as many bytes as UTF-8 of this size, about."""
    return size // _TEXT_BYTES


def _too_many_bytes() -> Overloaded:
    return Overloaded(
        "too many request bytes are being parsed (limit: SRUSERVE_MAX_QUEUE_BYTES, for one API "
        "key half of the part that others leave); retry later or send smaller requests"
    )


def _unsent() -> Overloaded:
    return Overloaded(
        "too many replies wait for their clients (limit: SRUSERVE_MAX_QUEUE_BYTES); retry later "
        "or request less at a time"
    )
