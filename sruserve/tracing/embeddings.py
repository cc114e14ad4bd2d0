"""Embeddings of the same ids, joined: a sum, a product, or rows side by side is one table."""

from collections.abc import Callable, Sequence

from torch import Tensor

from sruserve.model.errors import CheckpointError
from sruserve.model.importers.wiring.layers import Softmax
from sruserve.model.importers.wiring.tables import one_table
from sruserve.tracing.errors import Unserved
from sruserve.tracing.values import Lookup, Rows


def looked_up(parts: Sequence[Rows]) -> bool:
    """Whether all are computed from rows of tables."""
    return all(isinstance(part.origin, Lookup) for part in parts)


def combined(parts: Sequence[Rows], combine: Callable[[Sequence[Tensor]], Tensor]) -> Rows:
    """Return one table for rows of the same ids; see `one_table`."""
    if any(part.axes != parts[0].axes or part.axes[-1] != "F" for part in parts):
        raise Unserved("joins embeddings of different axes")
    tables = []
    for part in parts:
        assert isinstance(part.origin, Lookup)
        if any(isinstance(layer, Softmax) for layer in part.layers):
            raise Unserved("follows a softmax over the outputs, which must be the last operation")
        tables.append((part.origin.table, part.layers))
    try:
        return Rows(Lookup(one_table(tables, combine)), parts[0].axes)
    except CheckpointError as error:
        raise Unserved(str(error)) from error
