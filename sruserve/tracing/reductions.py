"""Sums, means, maxima and softmaxes: poolings of steps, weights of steps, and scores."""

from dataclasses import replace
from typing import Any

import torch

from sruserve.model.importers.wiring.layers import Linear, Softmax
from sruserve.tracing.errors import Unserved
from sruserve.tracing.pooling import attend, attention, pool, without
from sruserve.tracing.table import Site, axis_of, handles, placed, position, rows
from sruserve.tracing.values import Constant, Pooled, Rows, States, Value, Weighted, pooled, size_of


@handles("mean", "sum")
def total(site: Site, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    del dtype
    name = site.operation.name
    x = placed(x)
    axis = _one_axis(x, dim)
    if isinstance(x, Weighted):
        if axis != "T" or name != "sum":
            raise Unserved("reduces weighted outputs in another way than a sum over the steps")
        return attend(x.weights, x.outputs, without(x.axes, "T", keepdim))
    if isinstance(x, States) and axis == "S" and not keepdim:
        return _entries(x, 1.0 if name == "sum" else 1 / len(x.ends))
    x = rows(x)
    if axis == "T":
        return pool(x, name, keepdim)
    if axis != "F":
        raise Unserved("reduces the batch")
    factor = 1.0 if name == "sum" else 1 / x.width
    summed = x.then(Linear(torch.full((1, x.width), factor)))
    return summed if keepdim else replace(summed, axes=without(x.axes, "F", False))


@handles("max", "amax")
def largest(site: Site, x: Value, dim: Any = None, keepdim: bool = False) -> Value | list[Value]:
    x = rows(x)
    if isinstance(dim, Value) or _one_axis(x, dim) != "T":
        raise Unserved("takes a maximum that is not over the steps")
    pooled = pool(x, "max", keepdim)
    if site.operation.name == "amax":
        return pooled
    return [pooled, Constant(torch.empty(0), torch.empty(1))]


@handles("adaptive_avg_pool1d", "adaptive_max_pool1d")
def adaptive(site: Site, x: Value, output_size: Any = 1, return_indices: bool = False) -> Value:
    if output_size not in (1, (1,)) or return_indices:
        raise Unserved("pools to more than one step")
    return _last_axis(rows(x), "mean" if "avg" in site.operation.name else "max")


@handles("avg_pool1d", "max_pool1d")
def window(site: Site, x: Value, kernel_size: Any, stride: Any = None, **kwargs: Any) -> Value:
    size = kernel_size[0] if isinstance(kernel_size, tuple) else kernel_size
    odd = {name: value for name, value in kwargs.items() if value not in (0, 1, False, True, None)}
    if site.sizes.name(size) != "T" or odd or kwargs.get("padding"):
        raise Unserved("pools windows of steps")
    del stride
    return _last_axis(rows(x), "mean" if "avg" in site.operation.name else "max")


@handles("softmax", "log_softmax", "softmax_")
def softmax(
    site: Site, x: Value, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Value:
    del _stacklevel, dtype
    x = rows(x)
    log = site.operation.name == "log_softmax"
    if dim is None:  # the old rule of torch
        dim = 0 if len(x.axes) in (0, 1, 3) else 1
    axis = axis_of(x, dim)
    if axis == "T" and not log:
        return attention(x)
    if axis != "F":
        raise Unserved(f"normalizes over {'the steps' if axis == 'T' else 'the batch'}")
    if isinstance(x.origin, Pooled) and x.origin.kind == "sum":
        raise Unserved("follows a sum over the steps; divide the sum by their number first")
    return x.then(Softmax(log))


def _entries(x: States, factor: float) -> Rows:
    """Return the sum of end states, times a factor, as a linear layer over all side by side."""
    axes = without(x.axes, "S", False)
    beside = Rows(pooled(x.outputs, "final", x.ends), axes)
    if axes[-1] != "F":
        raise Unserved("sums end states whose features are not the last axis")
    return beside.then(Linear(torch.cat([factor * torch.eye(x.width)] * len(x.ends), 1)))


def _last_axis(x: Rows, kind: str) -> Value:
    if x.axes[-1] != "T":
        raise Unserved("pools another axis than the steps")
    return pool(x, kind, keep=True)


def _one_axis(x: Any, dim: Any) -> str:
    """Return the axis that is reduced, besides those of one entry."""
    if dim is None:
        raise Unserved("reduces all axes at once")
    dims = {position(x, each) for each in (dim if isinstance(dim, tuple) else (dim,))}
    axes = {x.axes[each] for each in dims if size_of(x, x.axes[each]) != 1}
    if len(axes) != 1 or len(dims) != 1:
        raise Unserved("reduces several axes at once")
    return str(axes.pop())
