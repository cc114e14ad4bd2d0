"""Indexing, slicing, splitting and joining."""

from dataclasses import replace
from typing import Any

from sruserve.tracing.axes import columns_of
from sruserve.tracing.errors import Unserved
from sruserve.tracing.graph import Varying
from sruserve.tracing.joining import side_by_side
from sruserve.tracing.pooling import pool
from sruserve.tracing.table import Site, handles, placed, position, rows
from sruserve.tracing.values import Constant, Placed, Rows, States, Value, settled, size_of


@handles("__getitem__")
def getitem(site: Site, x: Value, index: Any) -> Value:
    x = placed(x)
    items = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [each for each in items if not isinstance(each, Value)]:
        place = next(i for i, each in enumerate(items) if each is Ellipsis)
        missing = len(x.axes) - sum(each is not None for each in items) + 1
        items[place : place + 1] = [slice(None)] * missing
    items += [slice(None)] * (len(x.axes) - sum(each is not None for each in items))
    dim = len(x.axes)
    value: Placed = x
    for item in reversed(items):  # so features are picked before the step that has them
        if item is None:
            features = isinstance(value, Rows) and dim == len(value.axes)
            new = "F" if features and "F" not in value.axes else "1"
            value = replace(value, axes=(*value.axes[:dim], new, *value.axes[dim:]))
        else:
            dim -= 1
            value = picked(site, value, dim, item)
    return settled(value)


@handles("select")
def select(site: Site, x: Value, dim: int, index: Any) -> Value:
    x = placed(x)
    return settled(picked(site, x, position(x, dim), index))


@handles("narrow")
def narrow(site: Site, x: Value, dim: int, start: Any, length: Any) -> Value:
    x = placed(x)
    if isinstance(start, Varying | Constant) or not isinstance(length, int):
        raise Unserved("reads a range whose place depends on the input's size")
    end = start + length
    return settled(picked(site, x, position(x, dim), slice(start, end or None)))


@handles("chunk", "split", "tensor_split")
def split(site: Site, x: Value, sizes: Any, dim: int = 0) -> list[Value]:
    """Parts along an axis; the recorded shapes of the results are their sizes."""
    del sizes
    x = placed(x)
    place = position(x, dim)
    parts, begin = [], 0
    for shape in site.shapes:
        size = shape[place]
        if not isinstance(size, int):
            raise Unserved("splits the steps or the batch")
        parts.append(settled(picked(site, x, place, slice(begin, begin + size))))
        begin += size
    return parts


@handles("unbind", "__iter__")
def unbind(site: Site, x: Value, dim: int = 0) -> list[Value]:
    x = placed(x)
    place = position(x, dim)
    if not isinstance(size_of(x, x.axes[place]), int):
        raise Unserved("takes the steps or the sequences one by one")
    return [settled(picked(site, x, place, i)) for i in range(len(site.shapes))]


@handles("cat", "concat", "concatenate", "hstack")
def cat(site: Site, tensors: Any, dim: int | None = None) -> Value:
    if dim is None:
        dim = 1 if site.operation.name == "hstack" else 0
    parts = [rows(each) for each in tensors]
    if any(part.axes != parts[0].axes for part in parts):
        raise Unserved("joins rows of different axes")
    if parts[0].axes[position(parts[0], dim)] != "F":
        raise Unserved("joins along another axis than the features")
    return side_by_side(parts)


def picked(site: Site, x: Placed, dim: int, item: Any) -> Placed:
    """Return the entries of an axis that an index or a slice picks."""
    if dim >= len(x.axes):
        raise Unserved("has more indices than its input has axes")
    axis = x.axes[dim]
    rest = (*x.axes[:dim], *x.axes[dim + 1 :])
    if isinstance(item, slice):
        return _sliced(site, x, axis, item)
    item = -1 if site.sizes.name(item) == "T-1" and axis == "T" else item
    if not isinstance(item, int) or isinstance(item, bool):
        raise Unserved("picks entries by a tensor or by a number that depends on the input")
    if axis == "1":
        return replace(x, axes=rest)
    if axis == "T" and isinstance(x, Rows):
        if item not in (-1, 0):
            raise Unserved(f"reads step {item}, not the last one")
        return pool(x, "last" if item == -1 else "first")
    if axis == "F" and isinstance(x, Rows):
        return replace(columns_of(x, [item % x.width]), axes=rest)
    if axis in ("S", "L", "D") and isinstance(x, States):
        return _entries(x, axis, [range(len(x.ends))[item] if axis == "S" else item], rest)
    raise Unserved("picks one of the sequences" if axis == "B" else "picks one of several rows")


def _sliced(site: Site, x: Placed, axis: str, item: slice) -> Placed:
    size = size_of(x, axis)
    stop = None if site.sizes.name(item.stop) == size else item.stop
    if item.start in (None, 0) and stop is None and item.step in (None, 1):
        return x
    if axis == "T" and isinstance(x, Rows) and stop is None and item.step in (None, 1):
        if item.start == -1 or site.sizes.name(item.start) == "T-1":
            return pool(x, "last", keep=True)
        raise Unserved("leaves out steps at the beginning")
    if axis in ("T", "B") or not isinstance(size, int):
        raise Unserved("leaves out steps" if axis == "T" else "leaves out sequences")
    numbers = list(range(size))[item]
    if not numbers:
        raise Unserved("picks nothing")
    if axis == "F" and isinstance(x, Rows):
        return columns_of(x, numbers)
    if axis in ("S", "L", "D") and isinstance(x, States):
        return _entries(x, axis, numbers, x.axes)
    if len(numbers) == size:
        return x
    raise Unserved("picks some of several rows")


def _entries(x: States, axis: str, numbers: list[int], axes: tuple[str, ...]) -> States:
    """Return the end states of some layers or directions."""
    directions = x.directions if "D" in x.axes else 1
    if axis == "S":
        ends = tuple(x.ends[i] for i in numbers)
        whole = len(numbers) % x.directions == 0
        return replace(x, ends=ends, axes=axes, directions=x.directions if whole else 1)
    if axis == "L":
        layers = len(x.ends) // directions
        starts = [i % layers * directions for i in numbers]
        ends = tuple(end for start in starts for end in x.ends[start : start + directions])
        return replace(x, ends=ends, axes=axes)
    kept = [i % directions for i in numbers]
    ends = tuple(end for i, end in enumerate(x.ends) if i % directions in kept)
    return replace(x, ends=ends, axes=axes, directions=len(kept))
