"""One SRU layer as tensors: norm, product, recurrence; over rows of sequences, or one step."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from sruserve.kernels.dispatch import sru_scan, uses_triton
from sruserve.kernels.product import Multiply
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.tiles import step_tile


class Layer(Protocol):
    """A recurrent layer, ready to run over rows of sequences."""

    @property
    def width(self) -> int:
        """Of what the next layer reads."""
        ...

    @property
    def columns(self) -> int:
        """Numbers in a row of u: what bounds how many rows are run at once."""
        ...

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Compute h (rows, width) from x (rows, in); `batch.states` moves on."""
        ...

    def project(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """All that needs no earlier h; it may move state of its own on."""
        ...

    def scan(self, u: Tensor, x: Tensor, batch: RaggedBatch, out: Tensor | None = None) -> Tensor:
        """The recurrence over `u`, with the layer's input `x`."""
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
        """One step of many streams; see `SRULayer.step`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SRULayer:
    """The tensors and switches of one layer, and what is done with them.

    product: (in or projection) -> (blocks * width), in planar blocks; see `reference_sru_scan`.
    projection: (in) -> (projection), where the weight is factorised.
    weight_c, bias: (2, width), float32: forget, reset.
    column: where its `c` begins in a state row.
    norm: weight and bias of a layer norm of the input, or with `norm_after` of the output.
    highway_is_input: the highway takes the layer's raw input times `scale`.
    fast: see `make_product`.
    """

    product: Multiply
    weight_c: Tensor
    bias: Tensor
    column: int
    projection: Multiply | None = None
    norm: tuple[Tensor, Tensor] | None = None
    norm_after: bool = False
    highway_is_input: bool = True
    scale: float = 1.0
    tanh: bool = False
    updated_reset: bool = False
    backward_from: int | None = None
    fast: bool = False

    @property
    def width(self) -> int:
        return self.weight_c.shape[1]

    @property
    def columns(self) -> int:
        return self.product.outputs

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Compute h (rows, width) from x (rows, in); `batch.states` moves on."""
        return self.finish(self.scan(self.project(x, batch), x, batch))

    def project(self, x: Tensor, batch: RaggedBatch) -> Tensor:  # noqa: ARG002
        """All that needs no earlier step: u (rows, blocks * width)."""
        z = x if self.norm is None or self.norm_after else self._normed(x)
        if self.projection is not None:
            z = self.projection(z)
        return self.product(z)

    def scan(self, u: Tensor, x: Tensor, batch: RaggedBatch, out: Tensor | None = None) -> Tensor:
        """The recurrence over `u`, with the layer's input `x`."""
        return sru_scan(
            u,
            x if self.highway_is_input else None,
            self.weight_c,
            self.bias,
            batch,
            self.column,
            scale=self.scale,
            tanh=self.tanh,
            updated_reset=self.updated_reset,
            backward_from=self.backward_from,
            out=out,
        )

    def finish(self, h: Tensor) -> Tensor:
        """What the next layer reads."""
        return self._normed(h) if self.norm is not None and self.norm_after else h

    def step(
        self, x: Tensor, states: Tensor, source: Tensor, target: Tensor, index: Tensor | None = None
    ) -> Tensor:
        """One step of many streams: two launches on a GPU, or one without a projection.

        x: (streams, in), or a table of which `index`, (streams) int64, picks a row for each.
        source, target: (streams), int64, as in `RaggedBatch`.

        Returns what the next layer reads. On one device its bits are those of a call with
        sequences of one step.
        """
        if index is not None and self.norm is not None and not self.norm_after:
            x, index = x.index_select(0, index), None
        if not uses_triton(x.device):
            x = x if index is None else x.index_select(0, index)
            each = torch.arange(len(source) + 1)
            return self(x, RaggedBatch(each, states, source, target))
        from sruserve.kernels.triton_product import capability
        from sruserve.kernels.triton_step import triton_sru_step

        z, z_index = x, index
        if self.norm is not None and not self.norm_after:
            z = self._normed(x)
        if self.projection is not None:
            z, z_index = self.projection.step(z, index), None
        h = triton_sru_step(
            z,
            self.product.weight,
            x if self.highway_is_input else None,
            self.weight_c,
            self.bias,
            states,
            source,
            target,
            self.column,
            x_index=z_index,
            residual_index=index if self.highway_is_input else None,
            scale=self.scale,
            tanh=self.tanh,
            updated_reset=self.updated_reset,
            tile=step_tile(len(source), x.dtype, capability(x.device), self.fast),
        )
        return self.finish(h)

    def _normed(self, x: Tensor) -> Tensor:
        assert self.norm is not None
        return F.layer_norm(x, x.shape[1:], *self.norm)
