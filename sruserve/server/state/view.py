"""A small picture of a state: range, mean and some of the numbers of each of its tensors."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sruserve.model.state import StateLayout
from sruserve.server.engine.snapshot import Snapshot

MAX_VALUES = 1024
FIXED_NUMBERS = 4  # of a tensor, beside its values


def view_entries(snapshot: Snapshot, layout: StateLayout, values: int) -> list[dict[str, Any]]:
    """The tensors of a state in plain values.

    values: most values of each tensor, up to `MAX_VALUES`.

    Each has its `name` in the layout, its `size`, the `min`, `max` and `mean` of its numbers, and
    `values`, evenly spaced ones of them.
    """
    row = np.asarray(snapshot.row)
    return [
        {"name": entry.name, **_summary(row[entry.offset : entry.offset + entry.size], values)}
        for entry in layout.entries
    ]


def _summary(numbers: NDArray[np.float32], values: int) -> dict[str, Any]:
    """numbers: (size), float32, finite."""
    size = len(numbers)
    shown = min(size, values)
    places = np.arange(shown) * size // max(shown, 1)
    return {
        "size": size,
        "min": float(numbers.min()),
        "max": float(numbers.max()),
        "mean": float(numbers.mean(dtype=np.float64)),
        "values": numbers[places].tolist(),
    }
