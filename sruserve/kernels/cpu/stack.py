"""Call the compiled stack, `stack.h`, through ctypes: all layers of a network without the GIL."""

import threading
from collections.abc import Sequence
from types import NoneType
from typing import TypeGuard

import torch
from torch import Tensor

import sruserve.kernels.cpu.library as cpu
from sruserve.kernels.cpu.integer_product import integer_work
from sruserve.kernels.cpu.packed_layers import PackedLayers, inputs_of
from sruserve.kernels.integer_linear import IntegerLinear
from sruserve.kernels.layer import CellLayer, Layer
from sruserve.kernels.linear import PanelLinear
from sruserve.kernels.projected import MAX_PROJECTED, weights_of
from sruserve.kernels.ragged import RaggedBatch

_MAX_REUSED = 8 << 20
# Rows of a slice, which one thread takes through all layers, and what a core's cache should keep of
# a layer's weights, because it reads them for each slice.
_MIN_SLICE, _MAX_SLICE = 32, 128
_SLICE_BYTES = 1 << 20
_SLICES = 4  # of each thread, at least, so that none waits long for the last one
_MIN_SLICED = 512  # rows: of fewer, one thread or two are as quick without slices
_PROJECTED_ROWS = 256  # of the embedding at a time, so that little work memory is needed
_PRODUCTS = (PanelLinear, IntegerLinear)


class CompiledStack:
    """Element-wise layers in float32 on the CPU, run by one call without the GIL.

    It agrees with the layers one after another to rounding: the norms sum in another order.

    The first layer's product has the same bits whenever a row of the embedding is read, so it is
    computed once for each row of a small enough embedding, and picked by id.

    reads_ids: the first layer's input is a row of the embedding.
    outputs: the width of the last layer's output.
    spared: number of weights by which no row is multiplied, because its product is picked.
    """

    def __init__(
        self,
        layers: Sequence[CellLayer],
        table: Tensor | None,
        *,
        max_reused: int = _MAX_REUSED,
        max_projected: int = MAX_PROJECTED,
    ) -> None:
        """Pack the layers, which must be `compilable`.

        table: (vocabulary, inputs), the rows that ids select, if there is one.
        max_reused: numbers of work memory that a thread keeps between calls.
        max_projected: numbers of the first layer's products that are computed in advance.
        """
        self._max_reused = max_reused
        self._layers, self._table = PackedLayers(layers), table
        self.reads_ids = table is not None
        self.outputs = layers[-1].width
        widths = [width for layer in layers for width in (inputs_of(layer), layer.linear.inputs)]
        self._inputs = widths[0]
        self._widest = max(*widths, *(layer.width for layer in layers))
        self._columns = max(layer.columns for layer in layers)
        products = [each for layer in layers for each in (layer.linear, layer.projection)]
        rounded = [each.inputs for each in products if isinstance(each, IntegerLinear)]
        as_bytes = max((integer_work(1, inputs) for inputs in rounded), default=0)
        largest = max(layer.columns * layer.linear.inputs for layer in layers)
        self._slices = 4 * largest <= _SLICE_BYTES
        self._row_work = 4 * self._widest + self._columns + as_bytes
        self._threads = threading.local()
        self._projected: Tensor | None = None
        self.spared = 0
        if table is not None and len(table) * layers[0].columns <= max_projected:
            self._projected = self._project(table, layers[0].columns)
            self.spared = weights_of(layers[0])

    def __call__(self, inputs: Tensor, batch: RaggedBatch) -> Tensor:
        """Compute the last layer's output, (rows, width), and advance `batch.states`.

        inputs: (rows), int64 ids of `table`, or (rows, inputs), float32.

        Raises ValueError or IndexError, before it writes anything, for tensors that do not fit.
        """
        rows, by_id = inputs.shape[0], inputs.dim() == 1
        inputs = inputs.contiguous()
        states, offsets, source, target = batch.states, batch.offsets, batch.source, batch.target
        sequences, table = source.shape[0], self._table
        if not (
            (inputs.dtype is torch.int64 and table is not None)
            if by_id
            else (inputs.dtype is torch.float32 and inputs.shape[1] == self._inputs)
        ):
            raise ValueError(
                f"stack: inputs must be ids, or {self._inputs} numbers of float32 a row; they are "
                f"{tuple(inputs.shape)} of {inputs.dtype}"
            )
        if not (
            states.dtype is torch.float32
            and offsets.dtype is source.dtype is target.dtype is torch.int64
            and offsets.shape == (sequences + 1,)
            and target.shape == (sequences,)
        ):
            raise ValueError("stack: a tensor of the batch has the wrong shape or dtype")
        for tensor in (inputs, states, offsets, source, target):
            if not (tensor.is_cpu and tensor.is_contiguous()):
                raise ValueError("stack: every tensor must be contiguous and on the CPU")
        slice_rows, work_rows = 0, rows
        if sequences and rows >= _MIN_SLICED and int(offsets[-1]) == rows:
            longest = longest_of(offsets)
            slice_rows = self.slice_rows(rows, longest)
            if slice_rows:
                work_rows = max(slice_rows, longest) * torch.get_num_threads()
        out, work = torch.empty(rows, self.outputs), self._work(work_rows)
        cpu.call(
            "sru_stack",
            cpu.STACK.pack(
                self._layers.address,
                0 if by_id else inputs.data_ptr(),
                0 if table is None else table.data_ptr(),
                inputs.data_ptr() if by_id else 0,
                0 if self._projected is None else self._projected.data_ptr(),
                out.data_ptr(),
                states.data_ptr(),
                offsets.data_ptr(),
                source.data_ptr(),
                target.data_ptr(),
                work.data_ptr(),
                len(self._layers),
                rows,
                self._inputs,
                0 if table is None else table.shape[0],
                sequences,
                *states.shape,
                self._widest,
                self._columns,
                work_rows * self._row_work,
                torch.get_num_threads(),
                slice_rows,
            ),
        )
        return out

    def slice_rows(self, rows: int, longest: int) -> int:
        """Return how many rows of whole sequences, or one sequence, a thread takes at a time.

        It takes these through all layers, without other threads. 0: threads share each product,
        because there are too few rows, a sequence is too long, or the weights are too large.
        """
        threads = torch.get_num_threads()
        limit = rows // (_SLICES * threads) if threads > 1 else rows - 1
        slice_rows = min(_MAX_SLICE, limit)
        few = rows < _MIN_SLICED or slice_rows < _MIN_SLICE
        return 0 if few or longest > limit or not self._slices else slice_rows

    def _project(self, table: Tensor, columns: int) -> Tensor:
        """Compute what the first layer projects of each row of the table, (vocabulary, columns)."""
        projected = torch.empty(len(table), columns)
        work = torch.empty(_PROJECTED_ROWS * self._row_work)
        for start in range(0, len(table), _PROJECTED_ROWS):
            x, u = (rows[start : start + _PROJECTED_ROWS] for rows in (table, projected))
            before = (self._layers.address, x.data_ptr(), 0, 0, 0, u.data_ptr(), *[0] * 4)
            sizes = (len(self._layers), len(x), self._inputs, 0, 0, 0, 0)
            work_sizes = (self._widest, self._columns, work.numel(), torch.get_num_threads(), 0)
            cpu.call("sru_project", cpu.STACK.pack(*before, work.data_ptr(), *sizes, *work_sizes))
        return projected

    def _work(self, rows: int) -> Tensor:
        """Work memory of the calling thread; its pages stay mapped between calls."""
        numbers = rows * self._row_work
        work: Tensor | None = getattr(self._threads, "work", None)
        if work is None or work.numel() < numbers:
            work = torch.empty(numbers)
            if numbers <= self._max_reused:
                self._threads.work = work
        return work


def longest_of(offsets: Tensor) -> int:
    """Return the rows of the longest sequence."""
    return int((offsets[1:] - offsets[:-1]).max())  # `diff` takes twice as long


def compilable(layers: Sequence[Layer]) -> TypeGuard[Sequence[CellLayer]]:
    """Whether `CompiledStack` has all parts of the layers."""
    return all(
        isinstance(layer, CellLayer)
        and isinstance(layer.linear, _PRODUCTS)
        and isinstance(layer.projection, (*_PRODUCTS, NoneType))
        and layer.previous is None
        and (layer.inner_bias is None or layer.inner_norm is not None)
        for layer in layers
    )
