"""The windows of a convolution over time, whose filters keep their largest value."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of one width.

    count: number of filters. width: steps of a window. padding: zeros before an input, and after
    it.
    """

    count: int
    width: int
    padding: int


@dataclass(frozen=True, slots=True)
class Windows:
    """All filters of a layer, and the places of what a stream remembers.

    A column is one filter, and the columns are those of `groups` in order. A stream remembers, for
    each window that has begun, the sum over the steps that it has so far.

    groups: in order of their widths, the narrowest first.
    shortest: an input of fewer steps is filled up to that many, at its end.
    sums: first column in a state row of the sums of 1, 2, … steps, of the filters that are wider.
    largest: first column in a state row of the largest sum of each filter so far.
    steps: column in a state row of the number of steps so far; float32, so exact up to 2**24.
    """

    groups: tuple[Filters, ...]
    shortest: int
    sums: tuple[int, ...]
    largest: int
    steps: int

    @property
    def columns(self) -> int:
        """Number of filters."""
        return sum(group.count for group in self.groups)

    @property
    def longest(self) -> int:
        """Steps of the widest window."""
        return self.groups[-1].width

    def first(self, taps: int) -> int:
        """Return the first column whose windows have more than `taps` steps."""
        return sum(group.count for group in self.groups if group.width <= taps)

    def planes(self) -> list[int]:
        """Return the width of each plane of u: tap 0 of all filters, tap 1 of the wider ones, …"""
        return [self.columns - self.first(taps) for taps in range(self.longest)]

    def whole(self) -> Tensor:
        """Return the step at which a filter's first whole window ends, (columns), float32.

        Later windows are whole, too; windows that end before it lack steps.
        """
        return _spread(self.groups, [group.width - group.padding for group in self.groups])

    def min_steps(self, taps: int) -> Tensor:
        """Return the fewest steps of an input with a window of which `taps` steps are first.

        The window's other steps are after the input's end. Returns (columns - first(taps)).
        """
        wide = [group for group in self.groups if group.width > taps]
        return _spread(wide, [taps - group.padding for group in wide])

    def max_steps(self, taps: int) -> Tensor:
        """Return the most steps of an input that has enough padding after these `taps` steps.

        Returns (columns - first(taps)), float32; infinity where every input has it.
        """
        wide = [group for group in self.groups if group.width > taps]
        missing = [group.width - taps - group.padding for group in wide]
        return _spread(wide, [self.shortest - n if n > 0 else torch.inf for n in missing])


def _spread(groups: Sequence[Filters], values: Sequence[float]) -> Tensor:
    """Return each group's value for each of its filters, float32."""
    counts = torch.tensor([group.count for group in groups])
    return torch.tensor(values, dtype=torch.float32).repeat_interleave(counts)
