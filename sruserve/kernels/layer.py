"""A layer as tensors, in three parts: the projection, the recurrence, and the output norm."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from sruserve.kernels.cell import Cell, Kind
from sruserve.kernels.dispatch import scan, uses_triton
from sruserve.kernels.linear import LinearOp
from sruserve.kernels.norm import Norm
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.triton.tiles import step_tile

_SHIFT = Cell(kind=Kind.SHIFT, blocks=1)


class Layer(Protocol):
    """One layer of a stack, over rows of sequences."""

    @property
    def width(self) -> int:
        """Width of the output that the next layer reads."""
        ...

    @property
    def columns(self) -> int:
        """Numbers in one row of what `project` returns."""
        ...

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Run `finish(scan(project(x, batch), x, batch))`: x (rows, in) into (rows, width)."""
        ...

    def project(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Compute everything that needs no earlier h: u (rows, columns).

        It may advance state of its own from the source rows to the target rows, in columns that
        `scan` does not touch, so calls must follow the order of time.
        """
        ...

    def scan(self, u: Tensor, x: Tensor, batch: RaggedBatch, out: Tensor | None = None) -> Tensor:
        """Run the recurrence over `u`, with the layer's input `x`; returns h (rows, width)."""
        ...

    def finish(self, h: Tensor) -> Tensor:
        """Return the output that the next layer reads, (rows, width)."""
        ...


@runtime_checkable
class StepLayer(Layer, Protocol):
    """A layer that a captured burst on a GPU can run."""

    def step(
        self, x: Tensor, states: Tensor, source: Tensor, target: Tensor, index: Tensor | None = None
    ) -> Tensor:
        """Run one step of many streams without waiting for the GPU.

        x: (streams, in), or a table from which `index`, (streams) int64, picks each stream's row.
        source, target: (streams), int64, as in `RaggedBatch`.

        Returns the output that the next layer reads, (streams, width). On the same device it has
        the bits of a call with sequences of one step.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLayer:
    """The tensors and switches of a layer whose recurrence is element-wise.

    linear: (in or projection) -> (blocks * width), in the planar blocks of `cell`.
    column: first column of the state of `cell` in a state row.
    weight_c, bias: (2, width), float32: SRU's forget and reset.
    projection: (in) -> (projection), if the weight is factorised.
    norm: norm of the input, or with `norm_after` of the output.
    highway_is_input: the highway takes the layer's raw input times `cell.scale`.
    backward_from: see `reference_scan`.
    fast: see `make_linear`.
    previous: first column of the previous input in a state row; `linear` then takes
        [x_t ; x_(t-1)], both as wide as the layer's input (QRNN's window of 2).
    inner_norm, inner_bias: norm and bias of all of `linear`'s output, before the recurrence (LRN's
        RMS norm).
    """

    linear: LinearOp
    cell: Cell
    column: int
    weight_c: Tensor | None = None
    bias: Tensor | None = None
    projection: LinearOp | None = None
    norm: Norm | None = None
    norm_after: bool = False
    highway_is_input: bool = False
    backward_from: int | None = None
    fast: bool = False
    previous: int | None = None
    inner_norm: Norm | None = None
    inner_bias: Tensor | None = None

    @property
    def width(self) -> int:
        """See `Layer.width`."""
        return self.linear.outputs // self.cell.blocks

    @property
    def columns(self) -> int:
        """See `Layer.columns`."""
        return self.linear.outputs

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Compute h (rows, width) from x (rows, in), and advance `batch.states`."""
        return self.finish(self.scan(self.project(x, batch), x, batch))

    def project(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """See `Layer.project`."""
        z = self._normed(x)
        if self.projection is not None:
            z = self.projection(z)
        return self._inner(self.linear(self._beside_previous(z, batch)))

    def scan(self, u: Tensor, x: Tensor, batch: RaggedBatch, out: Tensor | None = None) -> Tensor:
        """See `Layer.scan`."""
        return scan(
            u,
            x if self.highway_is_input else None,
            self.weight_c,
            self.bias,
            batch,
            self.column,
            self.cell,
            backward_from=self.backward_from,
            out=out,
        )

    def finish(self, h: Tensor) -> Tensor:
        """See `Layer.finish`."""
        return self.norm(h) if self.norm is not None and self.norm_after else h

    def step(
        self, x: Tensor, states: Tensor, source: Tensor, target: Tensor, index: Tensor | None = None
    ) -> Tensor:
        """See `StepLayer.step`. On a GPU: one launch, plus one each for a norm or a projection.

        A window of 2 costs two more: a SHIFT, and its concatenation with the input. An inner norm
        or bias splits the launch into product and scan, and costs one more itself.
        """
        if not uses_triton(x.device):
            x = x if index is None else x.index_select(0, index)
            return self(x, one_step_each(states, source, target))
        in_turn = self.inner_norm is not None or self.inner_bias is not None
        normed_before = self.norm is not None and not self.norm_after
        if index is not None and (normed_before or in_turn or self.previous is not None):
            x, index = x.index_select(0, index), None
        z, z_index = self._normed(x), index
        if self.projection is not None:
            z, z_index = self.projection.step(z, index), None
        if self.previous is not None:
            z = self._beside_previous(z, one_step_each(states, source, target))
        if in_turn:
            u = self._inner(self.linear.step(z, z_index))
            return self.finish(self.scan(u, x, one_step_each(states, source, target)))
        return self.step_of(z, x, states, source, target, z_index, index)

    def step_of(
        self,
        z: Tensor,
        x: Tensor,
        states: Tensor,
        source: Tensor,
        target: Tensor,
        z_index: Tensor | None = None,
        x_index: Tensor | None = None,
    ) -> Tensor:
        """Run one step from what `linear` reads, z, with the layer's raw input `x`.

        z, x: (streams, …), or tables from which their index picks each stream's row.
        """
        if not uses_triton(x.device):
            z = z if z_index is None else z.index_select(0, z_index)
            x = x if x_index is None else x.index_select(0, x_index)
            batch = one_step_each(states, source, target)
            return self.finish(self.scan(self.linear(z), x, batch))
        from sruserve.kernels.triton.linear import capability
        from sruserve.kernels.triton.step import triton_step

        h = triton_step(
            z,
            self.linear.weight,
            self.linear.bias,
            x if self.highway_is_input else None,
            self.weight_c,
            self.bias,
            states,
            source,
            target,
            self.column,
            self.cell,
            x_index=z_index,
            residual_index=x_index if self.highway_is_input else None,
            tile=step_tile(len(source), x.dtype, capability(x.device), self.fast),
        )
        return self.finish(h)

    def _normed(self, x: Tensor) -> Tensor:
        return x if self.norm is None or self.norm_after else self.norm(x)

    def _beside_previous(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Return [x_t ; x_(t-1)] if `linear` takes both, otherwise x."""
        if self.previous is None:
            return x
        before = scan(x, None, None, None, batch, self.previous, _SHIFT)
        return torch.cat((x, before), 1)

    def _inner(self, u: Tensor) -> Tensor:
        if self.inner_norm is not None:
            u = self.inner_norm(u)
        return u if self.inner_bias is None else u + self.inner_bias


def one_step_each(states: Tensor, source: Tensor, target: Tensor) -> RaggedBatch:
    """Return a batch of sequences of one step each."""
    return RaggedBatch(torch.arange(len(source) + 1, device=source.device), states, source, target)
