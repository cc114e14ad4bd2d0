"""What the first layer projects of each id, computed once, so that a step picks it by id."""

import torch
import torch.nn.functional as F
from torch import Tensor

from sruserve.kernels.convolution import ConvolutionLayer
from sruserve.kernels.dispatch import uses_triton
from sruserve.kernels.gated import GatedLayer
from sruserve.kernels.layer import CellLayer, Layer
from sruserve.kernels.linear import padded_rows
from sruserve.kernels.ragged import single

MAX_PROJECTED = 4 << 20  # numbers: 16 MiB in float32
_ROWS = 256  # of the embedding at a time


def projected_ids(layer: Layer, table: Tensor) -> tuple[Tensor | None, int]:
    """Compute `layer.project` of each row of an embedding, unless it is too large.

    table: (vocabulary, in). A row's product has the same bits among any number of rows, so a row
    that is picked equals one that is computed anew.

    Returns (vocabulary, columns) and the number of weights by which no row is multiplied any more.
    Returns None and 0 on a GPU, for more than `MAX_PROJECTED` numbers, and for a layer that
    projects more than one row at a time.
    """
    if isinstance(layer, CellLayer):
        if layer.previous is not None:
            return None, 0
    elif not isinstance(layer, GatedLayer | ConvolutionLayer):
        return None, 0
    if uses_triton(table.device) or len(table) * layer.columns > MAX_PROJECTED:
        return None, 0
    stateless = torch.zeros(1, 0)
    pieces = []
    for piece in table.split(_ROWS):  # type: ignore[no-untyped-call]
        rows = len(piece)
        padded = F.pad(piece, (0, 0, 0, padded_rows(rows, table.dtype) - rows))
        pieces.append(layer.project(padded, single(stateless, len(padded)))[:rows])
    return torch.cat(pieces), weights_of(layer)


def weights_of(layer: CellLayer | GatedLayer | ConvolutionLayer) -> int:
    """Return the number of weights by which a layer multiplies a row of its input."""
    weights = layer.linear.inputs * layer.linear.outputs
    if isinstance(layer, CellLayer) and layer.projection is not None:
        weights += layer.projection.inputs * layer.projection.outputs
    return weights
