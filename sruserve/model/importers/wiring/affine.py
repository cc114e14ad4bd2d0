"""Affine row layers as one product, to fold them into the layer that reads them."""

from collections.abc import Sequence

import numpy as np

from sruserve.model.heads.row_layers import LinearLayer, ScaleLayer, SelectLayer
from sruserve.model.importers.wiring.steps import Array, Rows


def is_affine(rows: Rows) -> bool:
    """Whether the layer is a product and a sum, which also commute with a mean."""
    return isinstance(rows.layer, (LinearLayer, ScaleLayer, SelectLayer))


def affine_map(layers: Sequence[Rows], width: int) -> tuple[Array, Array]:
    """Return A (out, width) and b (out), float64, such that the layers compute A x + b."""
    product, offset = np.eye(width), np.zeros(width)
    for rows in layers:
        tensors = {name: array.astype(np.float64) for name, array in rows.tensors.items()}
        if isinstance(rows.layer, LinearLayer):
            product, offset = tensors["weight"] @ product, tensors["weight"] @ offset
            offset = offset + tensors.get("bias", 0.0)
        elif isinstance(rows.layer, ScaleLayer):
            weight = tensors["weight"]
            offset = (offset - tensors["mean"]) * weight + tensors["bias"]
            product = product * weight[:, None]
        else:
            assert isinstance(rows.layer, SelectLayer)
            columns = np.concatenate([np.arange(a, b) for a, b in rows.layer.ranges])
            product, offset = product[columns], offset[columns]
    return product, offset
