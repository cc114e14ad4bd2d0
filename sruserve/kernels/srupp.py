"""One SRU++ layer as tensors: a narrow product, attention, a wide product, and the SRU's scan."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from sruserve.kernels.attention import Attention, attend
from sruserve.kernels.layer import CellLayer, one_step_each
from sruserve.kernels.linear import LinearOp
from sruserve.kernels.norm import Norm
from sruserve.kernels.ragged import RaggedBatch

_Multiply = Callable[[LinearOp, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class SRUppLayer:
    """The tensors and switches of one layer (Lei 2021, section 3; sru 3.0.0.dev1-dev6).

    narrow: (in) -> (inner): linear1.
    cell: the recurrence. Its `linear` is (inner) -> (blocks * width): linear3, or linear2 of a
        layer without attention. With 3 blocks its highway is the layer's raw input.
    keys_values: (inner) -> (2 * inner): linear2 of a layer with attention.
    attention: the window of a query, and the ring's columns in a state row.
    norm: norm of the layer's input. Keys and values of earlier chunks of `attention.window`
        positions are stored without it, like the released code's memory of its last call.
    inner_norm: norm of the attention's output (of `narrow`'s, without attention); with
        `norm_before`, of the attention's input, but not of its residual.
    """

    narrow: LinearOp
    cell: CellLayer
    keys_values: LinearOp | None = None
    attention: Attention | None = None
    norm: Norm | None = None
    inner_norm: Norm | None = None
    norm_before: bool = False

    @property
    def width(self) -> int:
        return self.cell.width

    @property
    def columns(self) -> int:
        return self.cell.columns

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Compute h (rows, width) from x (rows, in), and advance `batch.states`."""
        return self.finish(self.scan(self.project(x, batch), x, batch))

    def project(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Compute all that needs no earlier h, u (rows, blocks * width), and advance the ring."""
        return self.cell.linear(self._inner(x, batch, lambda linear, z: linear(z)))

    def scan(self, u: Tensor, x: Tensor, batch: RaggedBatch, out: Tensor | None = None) -> Tensor:
        """Run the recurrence over `u`, with the layer's raw input `x`."""
        return self.cell.scan(u, x, batch, out)

    def finish(self, h: Tensor) -> Tensor:
        """Return the output that the next layer reads."""
        return self.cell.finish(h)

    def step(
        self, x: Tensor, states: Tensor, source: Tensor, target: Tensor, index: Tensor | None = None
    ) -> Tensor:
        """See `StepLayer.step`."""
        x = x if index is None else x.index_select(0, index)
        batch = one_step_each(states, source, target)
        z = self._inner(x, batch, lambda linear, z: linear.step(z), one_step=True)
        return self.cell.step_of(z, x, states, source, target)

    def _inner(
        self, x: Tensor, batch: RaggedBatch, multiply: _Multiply, one_step: bool = False
    ) -> Tensor:
        """Compute what the wide product reads, (rows, inner), and advance the ring."""
        z = multiply(self.narrow, x if self.norm is None else self.norm(x))
        if self.attention is not None:
            z = self._attend(z, x, batch, self.attention, multiply, one_step)
        if self.inner_norm is not None and not (self.attention and self.norm_before):
            z = self.inner_norm(z)
        return z

    def _attend(
        self,
        z: Tensor,
        x: Tensor,
        batch: RaggedBatch,
        attention: Attention,
        multiply: _Multiply,
        one_step: bool,
    ) -> Tensor:
        """Return z plus the attention of its queries."""
        assert self.keys_values is not None
        before = self.inner_norm if self.norm_before else None
        q = z if before is None else before(z)
        memory = None
        if self.norm is not None and attention.window is not None:
            raw = multiply(self.narrow, x)
            memory = multiply(self.keys_values, raw if before is None else before(raw))
        keys_values = multiply(self.keys_values, q)
        return attend(q, keys_values, z, batch, attention, memory, one_step=one_step)
