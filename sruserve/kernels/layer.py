"""A layer as tensors: what needs no earlier step, the recurrence, and what comes after it."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from sruserve.kernels.cell import Cell, Kind
from sruserve.kernels.dispatch import scan, uses_triton
from sruserve.kernels.norm import Norm
from sruserve.kernels.product import Multiply
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.tiles import step_tile

_SHIFT = Cell(kind=Kind.SHIFT, blocks=1)


class Layer(Protocol):
    """One layer of a stack, over rows of sequences."""

    @property
    def width(self) -> int:
        """Of what the next layer reads."""
        ...

    @property
    def columns(self) -> int:
        """Numbers in one row of what `project` returns."""
        ...

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """`finish(scan(project(x, batch), x, batch))`: x (rows, in) into (rows, width)."""
        ...

    def project(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """All that needs no earlier h: u (rows, columns).

        It may carry state of its own from the source rows to the target rows, in columns that
        `scan` leaves alone; so calls come in the order of time.
        """
        ...

    def scan(self, u: Tensor, x: Tensor, batch: RaggedBatch, out: Tensor | None = None) -> Tensor:
        """The recurrence over `u`, with the layer's input `x`: h (rows, width), `out` if given."""
        ...

    def finish(self, h: Tensor) -> Tensor:
        """What the next layer reads."""
        ...


@runtime_checkable
class StepLayer(Layer, Protocol):
    """A layer that a captured burst on a GPU can run."""

    def step(
        self, x: Tensor, states: Tensor, source: Tensor, target: Tensor, index: Tensor | None = None
    ) -> Tensor:
        """One step of many streams, with nothing that waits for the GPU.

        x: (streams, in), or a table of which `index`, (streams) int64, picks a row for each.
        source, target: (streams), int64, as in `RaggedBatch`.

        Returns what the next layer reads. On one device its bits are those of a call with
        sequences of one step.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLayer:
    """The tensors and switches of a layer whose recurrence is element-wise.

    product: (in or projection) -> (blocks * width), in the planar blocks of `cell`.
    column: where the state of `cell` begins in a state row.
    weight_c, bias: (2, width), float32: SRU's forget and reset.
    projection: (in) -> (projection), where the weight is factorised.
    norm: of the input, or with `norm_after` of the output.
    highway_is_input: the highway takes the layer's raw input times `cell.scale`.
    backward_from: see `reference_scan`.
    fast: see `make_product`.
    previous: the column from which a state row holds the input before; the product then takes
        [x_t ; x_(t-1)], both as wide as the layer's input (QRNN's window of 2).
    inner_norm, inner_bias: of the whole product, before the recurrence (LRN's RMS norm).
    """

    product: Multiply
    cell: Cell
    column: int
    weight_c: Tensor | None = None
    bias: Tensor | None = None
    projection: Multiply | None = None
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
        return self.product.outputs // self.cell.blocks

    @property
    def columns(self) -> int:
        """See `Layer.columns`."""
        return self.product.outputs

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Compute h (rows, width) from x (rows, in); `batch.states` moves on."""
        return self.finish(self.scan(self.project(x, batch), x, batch))

    def project(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """See `Layer.project`."""
        z = self._normed(x)
        if self.projection is not None:
            z = self.projection(z)
        return self._inner(self.product(self._beside_previous(z, batch)))

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
        """See `StepLayer.step`: on a GPU one launch, with a norm or a projection one more each.

        A window of 2 costs two more (a SHIFT, and its output beside the input); an inner norm or
        bias takes the product and the scan apart, and is itself one more each.
        """
        if not uses_triton(x.device):
            x = x if index is None else x.index_select(0, index)
            return self(x, _each(states, source, target))
        in_turn = self.inner_norm is not None or self.inner_bias is not None
        normed_before = self.norm is not None and not self.norm_after
        if index is not None and (normed_before or in_turn or self.previous is not None):
            x, index = x.index_select(0, index), None
        z, z_index = self._normed(x), index
        if self.projection is not None:
            z, z_index = self.projection.step(z, index), None
        if self.previous is not None:
            z = self._beside_previous(z, _each(states, source, target))
        if in_turn:
            u = self._inner(self.product.step(z, z_index))
            return self.finish(self.scan(u, x, _each(states, source, target)))
        from sruserve.kernels.triton_product import capability
        from sruserve.kernels.triton_step import triton_step

        h = triton_step(
            z,
            self.product.weight,
            self.product.bias,
            x if self.highway_is_input else None,
            self.weight_c,
            self.bias,
            states,
            source,
            target,
            self.column,
            self.cell,
            x_index=z_index,
            residual_index=index if self.highway_is_input else None,
            tile=step_tile(len(source), x.dtype, capability(x.device), self.fast),
        )
        return self.finish(h)

    def _normed(self, x: Tensor) -> Tensor:
        return x if self.norm is None or self.norm_after else self.norm(x)

    def _beside_previous(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """[x_t ; x_(t-1)] where the product takes both."""
        if self.previous is None:
            return x
        before = scan(x, None, None, None, batch, self.previous, _SHIFT)
        return torch.cat((x, before), 1)

    def _inner(self, u: Tensor) -> Tensor:
        if self.inner_norm is not None:
            u = self.inner_norm(u)
        return u if self.inner_bias is None else u + self.inner_bias


def _each(states: Tensor, source: Tensor, target: Tensor) -> RaggedBatch:
    """Sequences of one step each."""
    return RaggedBatch(torch.arange(len(source) + 1, device=source.device), states, source, target)
