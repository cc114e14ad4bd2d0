"""Keras's layers that join others: poolings of the same steps, embeddings of the same ids."""

from collections.abc import Sequence

import torch

from sruserve.model.importers.keras.advice import AGAIN
from sruserve.model.importers.keras.graph import Layer
from sruserve.model.importers.wiring.layers import Select
from sruserve.model.importers.wiring.network import Pooling
from sruserve.model.importers.wiring.poolings import joined
from sruserve.model.importers.wiring.steps import Array, Pool, Rows, Step, tensor
from sruserve.model.importers.wiring.tables import one_table


def joined_tables(layer: Layer, tables: Sequence[Array]) -> Array:
    """Return embeddings that a layer joins as one table; raises `CheckpointError`."""
    rows = [(tensor(table), ()) for table in tables]
    if layer.kind == "Concatenate":
        _check_axis(layer, 2)
        return one_table(rows, lambda each: torch.cat(list(each), 1)).numpy()
    if len({table.shape[1] for table in tables}) > 1:
        raise layer.refuse("adds rows of different widths", AGAIN)
    return one_table(rows, lambda each: torch.stack(list(each)).sum(0)).numpy()


def joined_poolings(layer: Layer, kinds: Sequence[str], width: int) -> list[Step]:
    """Return poolings of rows of `width` that a layer joins; raises `CheckpointError`."""
    _check_axis(layer, 1)
    poolings, ranges = joined([[Pooling(kind)] for kind in kinds], width, None)
    columns = tuple(own for each in ranges for own in each)
    repeated = [Rows(layer.name, Select(columns))] if len(poolings) < len(kinds) else []
    return [Pool(layer.name, poolings), *repeated]


def _check_axis(layer: Layer, features: int) -> None:
    if layer.config.get("axis", -1) not in (-1, features):
        raise layer.refuse("joins along another axis than the features")
