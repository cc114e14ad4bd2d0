"""Layers whose gates and next projection are one launch, for steps of a few streams on a GPU."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sruserve.kernels.candidates import Candidate, chosen
from sruserve.kernels.dispatch import uses_triton
from sruserve.kernels.layer import CellLayer, StepLayer
from sruserve.kernels.reference.fixed_point import fixed_limit
from sruserve.kernels.triton.tiles import MERGED_ROWS, MERGED_WIDTH, merged_tile


class MergedLayers:
    """A stack of factorised layers: `of` says which.

    A launch adds to the sums that the next one reads, and clears those that the next one adds to.
    So the first ones are zeros whenever a step begins, and the streams of a step run in one order:
    on one CUDA stream at a time.
    """

    def __init__(self, layers: Sequence[CellLayer]) -> None:
        from sruserve.kernels.triton.merged import SPARE

        self._layers = layers
        self._transposed = [
            layer.projection.weight.T.contiguous()
            for layer in layers[1:]
            if layer.projection is not None
        ]
        self._limits = [fixed_limit(each.T) for each in self._transposed]
        self._sums = [
            torch.zeros(MERGED_ROWS, each.shape[1] + SPARE, dtype=torch.int64, device=each.device)
            for each in self._transposed
        ]

    @classmethod
    def of(
        cls, layers: Sequence[StepLayer], max_width: int = MERGED_WIDTH
    ) -> "MergedLayers | None":
        """Merge a stack in the arithmetic `fast`, if it can be and the candidate is chosen.

        It takes three layers or more, all but the first with a projection, none with biases or
        norms. max_width: of a projection.
        """
        plain = [layer for layer in layers if _is_plain(layer)]
        if Candidate.MERGED_STEP not in chosen or len(plain) < max(3, len(layers)):
            return None
        cells = [layer for layer in plain if isinstance(layer, CellLayer)]
        follow = all(_follows(*pair, max_width) for pair in pairwise(cells))
        return cls(cells) if follow else None

    def takes(self, streams: int) -> bool:
        """Whether a step of so many streams merges."""
        return 0 < streams <= MERGED_ROWS

    def step(
        self, x: Tensor, states: Tensor, source: Tensor, target: Tensor, index: Tensor | None = None
    ) -> Tensor:
        """Run one step of all layers, as `StepLayer.step` of each; returns the last one's output.

        The results are those of `fast` to rounding, and have the same bits in each run.
        """
        try:
            return self._step(x, states, source, target, index)
        except BaseException:
            for sums in self._sums:  # launches that are missing clear nothing
                sums.zero_()
            raise

    def _step(
        self, x: Tensor, states: Tensor, source: Tensor, target: Tensor, index: Tensor | None
    ) -> Tensor:
        from sruserve.kernels.triton.merged import merged_step

        rows, last = len(source), len(self._layers) - 1
        # The last launch clears the first sums, for the next step.
        cleared = [*self._sums[1:], None, self._sums[0]]
        z, z_index = x, index
        first = self._layers[0].projection
        if first is not None:
            z, z_index = first.step(x, index), None
        for number, layer in enumerate(self._layers):
            clear = cleared[number]
            h = merged_step(
                z,
                layer.linear.weight,
                x if layer.highway_is_input else None,
                layer.weight_c,
                layer.bias,
                states,
                source,
                target,
                layer.column,
                layer.cell,
                x_index=z_index,
                residual_index=index if layer.highway_is_input else None,
                next_weight=self._transposed[number] if number < last else None,
                next_sums=self._sums[number] if number < last else None,
                limit=self._limits[number] if number < last else 0.0,
                clear=None if clear is None else clear[:rows],
                tile=merged_tile(rows),
            )
            z, z_index, x, index = self._sums[min(number, last - 1)], None, h, None
        return x


def _is_plain(layer: StepLayer) -> bool:
    """Whether a layer is a product without a bias, its cell, and nothing else."""
    return (
        isinstance(layer, CellLayer)
        and layer.fast
        and uses_triton(layer.linear.weight.device)
        and layer.linear.bias is None
        and layer.cell.gated_by_state
        and all(
            each is None
            for each in (layer.norm, layer.previous, layer.inner_norm, layer.inner_bias)
        )
    )


def _follows(below: CellLayer, layer: CellLayer, max_width: int) -> bool:
    """Whether the projection of a layer can be a part of the launch of the one below."""
    projection = layer.projection
    return (
        projection is not None
        and projection.bias is None
        and projection.inputs == below.width
        and projection.outputs <= max_width
    )
