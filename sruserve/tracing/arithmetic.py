"""Sums, differences, products and quotients: scales, residuals, branches, weights of steps."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sruserve.model.importers.wiring.layers import Linear, Residual, affine, scale, width_after
from sruserve.tracing.embeddings import combined, looked_up
from sruserve.tracing.errors import Unserved
from sruserve.tracing.graph import Varying
from sruserve.tracing.joining import poolings
from sruserve.tracing.pooling import mean_of_sum, weighted
from sruserve.tracing.table import Site, handles, rows
from sruserve.tracing.values import Constant, Pooled, Rows, Value, Weights


@handles("add", "__add__", "__radd__", "__iadd__")
def add(site: Site, a: Any, b: Any, alpha: float = 1) -> Value:
    del site
    return _sum(a, b, alpha)


@handles("sub", "__sub__", "__isub__", "subtract")
def sub(site: Site, a: Any, b: Any, alpha: float = 1) -> Value:
    del site
    return _sum(a, b, -alpha)


@handles("__rsub__", "rsub")
def rsub(site: Site, a: Any, b: Any, alpha: float = 1) -> Value:
    """b - alpha * a."""
    del site
    if alpha != 1:
        raise Unserved("has an alpha of its own")
    return _sum(b, a, -1)


@handles("mul", "__mul__", "__rmul__", "__imul__", "multiply")
def mul(site: Site, a: Any, b: Any) -> Value:
    del site
    if isinstance(a, Weights) or isinstance(b, Weights):
        return weighted(a, b)
    if isinstance(a, Rows) and isinstance(b, Rows):
        if looked_up([a, b]):
            return combined([a, b], lambda tables: tables[0] * tables[1])
        raise Unserved("multiplies two parts of the network with each other")
    x, factor = (a, b) if isinstance(a, Rows) else (b, a)
    x = rows(x)
    return x.then(scale(_vector(x, factor)))


@handles("div", "__truediv__", "__itruediv__", "true_divide", "divide")
def div(site: Site, a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    x = rows(a)
    if rounding_mode is not None or isinstance(b, Rows):
        raise Unserved("divides in a way that cannot be served")
    if isinstance(b, Varying):
        if site.sizes.name(b) == "T":
            return mean_of_sum(x)
        raise Unserved("divides by a number that depends on the input's size")
    return x.then(scale(1 / torch.as_tensor(_vector(x, b), dtype=torch.float64)))


def _sum(a: Any, b: Any, factor: float) -> Value:
    """a + factor * b."""
    if isinstance(a, Rows) and isinstance(b, Rows):
        return _branches(a, b, factor)
    if isinstance(a, Rows):
        vector = torch.as_tensor(_vector(a, b), dtype=torch.float64).reshape(-1)
        if factor == -1:
            return a.then(replace(scale(), mean=vector))
        return a.then(scale(bias=factor * vector))
    x = rows(b)
    return x.then(scale(float(factor), _vector(x, a)))


def _vector(x: Rows, value: Any) -> Tensor | float:
    """Return an operand of rows as one number, or one for each feature."""
    if isinstance(value, bool | int | float):
        return float(value)
    if isinstance(value, Varying):
        raise Unserved("uses a number that depends on the input's size")
    if not isinstance(value, Constant):
        raise Unserved("joins the network with something else than a constant")
    tensor = _same_in_all_rows(x, value)
    if tensor.numel() == 1:
        return tensor.reshape(()).double()
    shape = (1,) * (len(x.axes) - tensor.dim()) + tuple(tensor.shape)
    if len(shape) > len(x.axes):
        raise Unserved("uses a constant of more dimensions than the rows")
    wide = [axis for axis, size in zip(x.axes, shape, strict=True) if size > 1]
    if wide != ["F"] or tensor.numel() != x.width:
        raise Unserved("uses a constant with numbers for other axes than the features")
    return tensor.reshape(-1).double()


def _same_in_all_rows(x: Rows, constant: Constant) -> Tensor:
    """Return a constant of both runs; one row of it, if it repeats that for every step."""
    first, second = constant.first, constant.second
    if "T" not in x.axes or x.axes[-1] != "F" or first.shape == second.shape:
        return constant.both()
    rows = torch.cat([each.detach().reshape(-1, each.shape[-1]) for each in (first, second)])
    if torch.equal(rows, rows[:1].expand_as(rows)):
        return rows[0]
    raise Unserved(
        "uses numbers that are not the same at every step, such as those of positions: a table of "
        "positions ends, and a stream does not"
    )


def _branches(a: Rows, b: Rows, factor: float) -> Value:
    """a + factor * b, of two parts of the network."""
    if a.axes != b.axes or a.width != b.width:
        raise Unserved("adds rows of different axes or widths")
    if isinstance(a.origin, Pooled) and isinstance(b.origin, Pooled) and a.origin is not b.origin:
        if a.layers or b.layers:
            raise Unserved("adds two parts of the network that do not come from the same rows")
        eye = torch.eye(a.width)
        return poolings([a, b]).then(Linear(torch.cat([eye, factor * eye], 1)))
    if a.origin is not b.origin:
        if looked_up([a, b]):
            return combined([a, b], lambda tables: tables[0] + factor * tables[1])
        raise Unserved("adds two parts of the network that do not come from the same rows")
    common = 0
    while common < min(len(a.layers), len(b.layers)):
        if a.layers[common] is not b.layers[common]:
            break
        common += 1
    base = replace(a, layers=a.layers[:common])
    own, others = a.layers[common:], b.layers[common:]
    if factor == 1 and bool(own) != bool(others):
        return base.then(Residual(own or others))
    width = width_after(base.layers, base.origin.width)
    first, second = affine(own, width), affine(others, width)
    if first is None or second is None:
        if looked_up([a, b]):
            return combined([a, b], lambda tables: tables[0] + factor * tables[1])
        raise Unserved("adds two branches that cannot be one layer")
    matrix, bias = first[0] + factor * second[0], first[1] + factor * second[1]
    return base.then(Linear(matrix.float(), bias.float()))
