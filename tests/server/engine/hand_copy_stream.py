"""A copy stream as a GPU has one, whose copies are made when a test says so, and not earlier."""

from collections.abc import Callable

import torch
from torch import Tensor

from sruserve.kernels.side_stream import StreamEvent


class HandCopyStream:
    """Copies are made in order, as late as the test allows: whoever reuses memory early shows it.

    allowed: copies that may be made so far; -1 is all. joined: times that steps had to wait.
    refuse: raised by the next `run`, after those that are spared; spoil: raised where the next
        copy is made.
    """

    is_async = True

    def __init__(self, allowed: int = 0) -> None:
        self.allowed, self.joined, self.made = allowed, 0, 0
        self.refuse: Exception | None = None
        self.spared = 0
        self.spoil: Exception | None = None
        self.copies: list[Callable[[], object]] = []

    def allocate(self, rows: int, width: int) -> Tensor:
        return torch.full((rows, width), torch.nan)

    def run(self, work: Callable[[], object]) -> "HandCopyEvent":
        if self.refuse is not None and not self.spared:
            error, self.refuse = self.refuse, None
            raise error
        self.spared = max(0, self.spared - 1)
        self.copies.append(work)
        return HandCopyEvent(self, len(self.copies))

    def wait_event(self, event: StreamEvent) -> None:
        assert isinstance(event, HandCopyEvent)
        self.joined += 1
        self.make(event.count)

    def make(self, count: int) -> None:
        while self.made < count:
            self.made += 1
            error, self.spoil = self.spoil, None
            if error is not None:
                raise error
            self.copies[self.made - 1]()


class HandCopyEvent:
    def __init__(self, copy_stream: HandCopyStream, count: int) -> None:
        self.stream, self.count = copy_stream, count

    def done(self) -> bool:
        if self.stream.made < self.count and 0 <= self.stream.allowed < self.count:
            return False
        self.stream.make(self.count)
        return True

    def wait(self) -> None:
        self.stream.make(self.count)
