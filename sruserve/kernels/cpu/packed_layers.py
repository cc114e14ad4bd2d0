"""Pack layers as the structs of `stack.h`."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

import sruserve.kernels.cpu.library as cpu
from sruserve.kernels.integer_linear import IntegerLinear
from sruserve.kernels.layer import CellLayer
from sruserve.kernels.linear import LinearOp
from sruserve.kernels.norm import Norm


class PackedLayers:
    """Layers in C's layout, which point to tensors that live as long as this does.

    address: of the first layer.
    """

    def __init__(self, layers: Sequence[CellLayer]) -> None:
        self._layers = tuple(layers)
        self._norms = [_norms(layer) for layer in layers]
        packed = zip(self._layers, self._norms, strict=True)
        self._buffer = ctypes.create_string_buffer(b"".join(_pack(*layer) for layer in packed))
        self.address = ctypes.addressof(self._buffer)

    def __len__(self) -> int:
        return len(self._layers)


def inputs_of(layer: CellLayer) -> int:
    """Return the width of the rows that a layer reads."""
    return (layer.projection or layer.linear).inputs


def _norms(layer: CellLayer) -> list[Norm | None]:
    """The norms before the products, after the last product, and of the output."""
    outer, inner = layer.norm, layer.inner_norm
    if inner is not None and layer.inner_bias is not None:
        inner = Norm(inner.weight, layer.inner_bias, inner.kind, inner.epsilon)
    norms = [None, inner, outer] if layer.norm_after else [outer, inner, None]
    return [None if norm is None else norm.biased() for norm in norms]


def _pack(layer: CellLayer, norms: Sequence[Norm | None]) -> bytes:
    linear, cell = layer.linear, layer.cell
    return cpu.LAYER.pack(
        *_pack_weight(linear),
        *_pack_weight(layer.projection),
        _pointer(layer.weight_c),
        _pointer(layer.bias),
        *(number for norm in norms for number in _pack_norm(norm)),
        inputs_of(layer),
        linear.inputs,
        cell.blocks,
        layer.width,
        layer.column,
        layer.width if layer.backward_from is None else layer.backward_from,
        cell.kind,
        cell.activation,
        cell.updated_reset,
        layer.highway_is_input,
        cell.scale,
        cell.keep,
    )


def _pack_weight(linear: LinearOp | None) -> tuple[int, int, int, int]:
    if linear is None:
        return 0, 0, 0, 0
    if not isinstance(linear, IntegerLinear):
        return _pointer(linear.weight), _pointer(linear.bias), 0, 0
    packed = linear.packed
    numbers, correction = packed.numbers.data_ptr(), packed.correction.data_ptr()
    return numbers, _pointer(packed.bias), _pointer(packed.scale), correction


def _pack_norm(norm: Norm | None) -> tuple[int, int, int, float]:
    if norm is None:
        return 0, 0, 0, 0.0
    return _pointer(norm.weight), _pointer(norm.bias), norm.kind, norm.epsilon


def _pointer(tensor: Tensor | None) -> int:
    if tensor is None:
        return 0
    assert tensor.is_contiguous()
    assert tensor.dtype is torch.float32
    return tensor.data_ptr()
