"""Embeddings of the same ids as one table: their sum, their product, or rows side by side."""

from collections.abc import Callable, Sequence

import torch
from pydantic import ValidationError
from torch import Tensor

from sruserve.kernels.devices import CPU
from sruserve.model.cells.stack import Builder
from sruserve.model.errors import CheckpointError
from sruserve.model.heads.row_layers import make_layers
from sruserve.model.importers.wiring.layers import Layers
from sruserve.model.importers.wiring.network import row_layers

Rows = tuple[Tensor, Layers]
"""The rows of a table, (ids, width), and the layers that each of them passes through."""


def one_table(parts: Sequence[Rows], combine: Callable[[Sequence[Tensor]], Tensor]) -> Tensor:
    """Return the table whose rows are combined from rows of the same id.

    combine: maps the parts' results, each (ids, width), to (ids, width of the table). Ids that not
    all parts have are left out, as the network fails on them.

    Raises `CheckpointError` for layers that no folder has.
    """
    ids = min(len(table) for table, _ in parts)
    with torch.no_grad():
        return combine([_through(table[:ids].float(), layers) for table, layers in parts])


def _through(rows: Tensor, layers: Layers) -> Tensor:
    """Return rows after layers, computed as the server does."""
    tensors: dict[str, Tensor] = {}
    try:
        configs = row_layers(layers, rows.shape[1], "", tensors)
    except ValidationError as error:
        raise CheckpointError("has layers after an embedding that no model folder has") from error
    run = make_layers(configs, tensors, "", Builder(torch.float32, CPU, fast=False))
    return rows if run is None else run(rows)
