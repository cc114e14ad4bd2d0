"""A layer of convolutions over time, whose filters keep their largest value (Kim 2014)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sruserve.kernels.cell import Activation, Cell, Kind
from sruserve.kernels.dispatch import scan
from sruserve.kernels.layer import one_step_each
from sruserve.kernels.linear import LinearOp
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.windows import Windows

_SUM = Cell(kind=Kind.SUM, blocks=1)
_MAX = Cell(kind=Kind.MAX, blocks=2)
_SHIFT = Cell(kind=Kind.SHIFT, blocks=1)
_FUNCTIONS = {
    Activation.IDENTITY: lambda x: x,
    Activation.TANH: torch.tanh,
    Activation.RELU: torch.relu,
}


@dataclass(frozen=True, slots=True)
class Ending:
    """Windows that begin in an input and end in the padding after it.

    taps: steps of the window that are before the input's end.
    first: the first column whose windows have more steps.
    min_steps, max_steps: (columns - first), float32: steps of the inputs that have this window;
        None where every input has it.
    filling: (columns - first), float32: what the padding adds; None for zeros.
    """

    taps: int
    first: int
    min_steps: Tensor | None
    max_steps: Tensor | None
    filling: Tensor | None

    def sums(self, begun: Tensor, count: Tensor) -> Tensor:
        """Return the windows' sums, -inf where an input of `count` (rows, 1) steps has none.

        begun: (rows, columns - first), the sums over the first `taps` steps.
        """
        ended = begun if self.filling is None else begun + self.filling
        if self.min_steps is not None:
            ended = torch.where(count >= self.min_steps, ended, -torch.inf)
        if self.max_steps is not None:
            ended = torch.where(count <= self.max_steps, ended, -torch.inf)
        return ended


def endings(windows: Windows, filling: Tensor | None, device: torch.device) -> tuple[Ending, ...]:
    """Return the endings that some input has, in the order of their taps.

    filling: see `reference_convolution`.
    """
    result = []
    for taps in range(windows.longest):
        first = windows.first(taps)
        min_steps, max_steps = windows.min_steps(taps), windows.max_steps(taps)
        if bool((max_steps >= min_steps.clamp(min=1)).any()):
            result.append(
                Ending(
                    taps,
                    first,
                    min_steps.to(device) if bool((min_steps > 1).any()) else None,
                    max_steps.to(device) if bool(max_steps.isfinite().any()) else None,
                    None if filling is None else filling[taps, first:].to(device),
                )
            )
    return tuple(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionLayer:
    """The tensors of a layer; `reference_convolution` is the definition of its recurrence.

    The output at step t is that of an input that ends there: the padding after it is part of the
    output, and not of the state.

    linear: (in) -> (sum of `windows.planes()`), without a bias.
    endings: see `endings`.
    bias: (columns), float32.
    whole: (columns), float32: see `Windows.whole`, at least 1.
    order: (columns), int64: the column of each output; None for the columns in their own order.
    """

    linear: LinearOp
    windows: Windows
    endings: tuple[Ending, ...]
    bias: Tensor
    whole: Tensor
    activation: Activation
    order: Tensor | None = None

    @property
    def width(self) -> int:
        """See `Layer.width`."""
        return self.windows.columns

    @property
    def columns(self) -> int:
        """See `Layer.columns`."""
        return self.linear.outputs

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Compute h (rows, width) from x (rows, in), and advance `batch.states`."""
        return self.finish(self.scan(self.project(x, batch), x, batch))

    def project(self, x: Tensor, batch: RaggedBatch) -> Tensor:  # noqa: ARG002
        """Multiply each step by all weights, float32."""
        return self.linear(x, torch.float32)

    def scan(self, u: Tensor, x: Tensor, batch: RaggedBatch, out: Tensor | None = None) -> Tensor:
        """Add the windows' sums and keep the largest; see `reference_convolution`."""
        best = _FUNCTIONS[self.activation](self._largest(u, batch) + self.bias)
        if self.order is not None:
            best = best.index_select(1, self.order)
        return best.to(x.dtype) if out is None else out.copy_(best)

    def finish(self, h: Tensor) -> Tensor:
        """Return h unchanged."""
        return h

    def step(
        self, x: Tensor, states: Tensor, source: Tensor, target: Tensor, index: Tensor | None = None
    ) -> Tensor:
        """See `StepLayer.step`."""
        x = x if index is None else x.index_select(0, index)
        return self(x, one_step_each(states, source, target))

    def _largest(self, u: Tensor, batch: RaggedBatch) -> Tensor:
        """Compute `reference_convolution`: one scan for each tap, and one for the maximum."""
        ones = torch.ones(len(u), 1, device=u.device)
        count = scan(ones, None, None, None, batch, self.windows.steps, _SUM)
        begun = [torch.zeros(len(u), self.width, device=u.device)]
        whole = []
        for taps, plane in enumerate(torch.split(u, self.windows.planes(), 1), 1):
            after = plane
            if taps > 1:
                column = self.windows.sums[taps - 2]
                after = scan(begun[-1], None, None, None, batch, column, _SHIFT) + plane
            ended = self.windows.first(taps) - self.windows.first(taps - 1)
            whole.append(after[:, :ended])
            begun.append(after[:, ended:].contiguous())
        sums = torch.cat(whole, 1)
        both = torch.cat((sums, (count > self.whole).float()), 1)
        best = scan(both, None, None, None, batch, self.windows.largest, _MAX)
        best = torch.where(count >= self.whole, best, -torch.inf)
        for ending in self.endings:
            wide = best[:, ending.first :]
            torch.maximum(wide, ending.sums(begun[ending.taps], count), out=wide)
        return best
