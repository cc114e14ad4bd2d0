"""A lane as a GPU has one, whose copies are made when a test says so, and not earlier."""

from collections.abc import Callable

import torch
from torch import Tensor

from sruserve.server.engine.lanes import Mark


class HandLane:
    """Copies are made in order, as late as the test allows: whoever reuses memory early shows it.

    allowed: copies that may be made so far; -1 is all. joined: times that steps had to wait.
    refuse: raised by the next `run`, after those that are spared; spoil: raised where the next
        copy is made.
    """

    staged = True

    def __init__(self, allowed: int = 0) -> None:
        self.allowed, self.joined, self.made = allowed, 0, 0
        self.refuse: Exception | None = None
        self.spared = 0
        self.spoil: Exception | None = None
        self.copies: list[Callable[[], None]] = []

    def allocate(self, rows: int, width: int) -> Tensor:
        return torch.full((rows, width), torch.nan)

    def run(self, copy: Callable[[], None]) -> "HandMark":
        if self.refuse is not None and not self.spared:
            error, self.refuse = self.refuse, None
            raise error
        self.spared = max(0, self.spared - 1)
        self.copies.append(copy)
        return HandMark(self, len(self.copies))

    def join(self, mark: Mark) -> None:
        assert isinstance(mark, HandMark)
        self.joined += 1
        self.make(mark.count)

    def make(self, count: int) -> None:
        while self.made < count:
            self.made += 1
            error, self.spoil = self.spoil, None
            if error is not None:
                raise error
            self.copies[self.made - 1]()


class HandMark:
    def __init__(self, lane: HandLane, count: int) -> None:
        self.lane, self.count = lane, count

    def done(self) -> bool:
        if self.lane.made < self.count and 0 <= self.lane.allowed < self.count:
            return False
        self.lane.make(self.count)
        return True

    def wait(self) -> None:
        self.lane.make(self.count)
