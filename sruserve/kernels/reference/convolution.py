"""A convolution over time and the maximum of its windows, in plain torch: the definition."""

import torch
from torch import Tensor

from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.windows import Windows


def reference_convolution(
    u: Tensor, filling: Tensor | None, batch: RaggedBatch, windows: Windows
) -> Tensor:
    """Compute the largest sum of each filter's windows, as if an input ended at each step.

    Kim 2014, eq. 2 and 3, without the bias and the activation: both rise with their argument, so
    they may follow the maximum. An input is x_1 … x_n; around it are a filter's zeros of `padding`,
    and rows that fill it up to `windows.shortest` steps. The sum of a window is
    W_0 x_t + W_1 x_(t+1) + …, added in this order.

    u: (rows, sum of `windows.planes()`), float32: W_k x of each step, plane k for the filters that
        are wider than k. Rows after the last offset are padding, whose result is undefined.
    filling: (longest, columns), float32: what a filling row adds to the sum of a window after k of
        its steps, if all others are such rows; None for zeros.

    Returns (rows, columns), float32. The sums advance from the source rows to the target rows.
    """
    out = torch.empty(len(u), windows.columns)
    offsets = batch.offsets.tolist()
    streams = zip(batch.source.tolist(), batch.target.tolist(), strict=True)
    for sequence, (source, target) in enumerate(streams):
        row = batch.states.new_zeros(batch.states.shape[1])
        if source >= 0:
            row = batch.states[source].clone()
        for t in range(offsets[sequence], offsets[sequence + 1]):
            out[t] = _step(u[t], filling, row, windows)
        if target >= 0:
            for column, size in _entries(windows):
                batch.states[target, column : column + size] = row[column : column + size]
    return out


def _step(u: Tensor, filling: Tensor | None, row: Tensor, windows: Windows) -> Tensor:
    """Return the largest sums after one more step, and advance a state row in place."""
    row[windows.steps] += 1
    n = float(row[windows.steps])
    planes = torch.split(u, windows.planes())
    sums = [torch.zeros(windows.columns)]  # after 0, 1, … steps of a window, of wider filters
    whole = []
    for taps in range(1, windows.longest + 1):
        before = torch.zeros(windows.columns)
        if taps > 1:
            column = windows.sums[taps - 2]
            before = row[column : column + len(planes[taps - 1])].clone()
        after = before + planes[taps - 1]
        ended = windows.first(taps) - windows.first(taps - 1)
        whole.append(after[:ended])
        sums.append(after[ended:])
    for column, after in zip(windows.sums, sums[1:], strict=False):
        row[column : column + len(after)] = after
    place = slice(windows.largest, windows.largest + windows.columns)
    first = torch.clamp(windows.whole(), min=1)
    row[place] = torch.where(
        n > first, torch.maximum(row[place], torch.cat(whole)), torch.cat(whole)
    )
    best = torch.where(n >= first, row[place], -torch.inf)
    for taps in range(windows.longest):
        wide = slice(windows.first(taps), None)
        ends = sums[taps] if filling is None else sums[taps] + filling[taps, wide]
        fits = (n >= windows.min_steps(taps)) & (n <= windows.max_steps(taps))
        best[wide] = torch.where(fits, torch.maximum(best[wide], ends), best[wide])
    return best


def _entries(windows: Windows) -> list[tuple[int, int]]:
    """Return first column and width of each entry of a state row."""
    sums = zip(windows.sums, windows.planes()[1:], strict=True)
    return [*sums, (windows.largest, windows.columns), (windows.steps, 1)]
