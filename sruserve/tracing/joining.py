"""Rows side by side: features of the same rows, embeddings of the same ids, several poolings."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from sruserve.model.importers.wiring.layers import (
    Activation,
    Layer,
    Layers,
    Linear,
    Select,
    affine,
    columns,
    fused,
)
from sruserve.model.importers.wiring.network import Pooling
from sruserve.model.importers.wiring.poolings import joined
from sruserve.tracing.axes import columns_of
from sruserve.tracing.embeddings import combined, looked_up
from sruserve.tracing.errors import Unserved
from sruserve.tracing.pooling import end_of_last
from sruserve.tracing.values import Outputs, Pooled, Rows

_JOINED = ("last", "mean", "max", "final")


def side_by_side(parts: Sequence[Rows]) -> Rows:
    """Return rows of several parts of the network as one row."""
    if all(part.origin is parts[0].origin for part in parts):
        return _branches(parts)
    if looked_up(parts):
        return _tables(parts)
    return poolings(parts)


def poolings(parts: Sequence[Rows]) -> Rows:
    """Return one row of all poolings that the parts read, then what each of them computes."""
    every = [_pooled(part) for part in parts]
    outputs = max((pooled.outputs for pooled in every), key=lambda each: each.depth)
    own = [[_form(each, pooled, outputs) for each in pooled.poolings] for pooled in every]
    kinds, ranges = joined(own, outputs.width, end_of_last(outputs))
    base = Rows(Pooled(outputs, kinds), parts[0].axes)
    picked = zip(parts, ranges, strict=True)
    return _branches([replace(base, layers=(Select(own), *part.layers)) for part, own in picked])


def _pooled(part: Rows) -> Pooled:
    if isinstance(part.origin, Pooled):
        return part.origin
    raise Unserved("joins rows that are not of the end state")


def _form(pooling: Pooling, pooled: Pooled, outputs: Outputs) -> Pooling:
    """Return a pooling as one of the outputs of the last module."""
    if outputs.stages[: len(pooled.outputs.stages)] != pooled.outputs.stages:
        raise Unserved("joins end states of modules that do not follow each other")
    if pooling.kind not in _JOINED:
        raise Unserved(f"joins the {pooling.kind} of the steps with another pooling")
    if pooling.kind == "final" or pooled.outputs is outputs:
        return pooling
    if pooling.kind == "last" and (end := end_of_last(pooled.outputs)) is not None:
        return Pooling("final", (end,))
    raise Unserved(f"joins the {pooling.kind} of another module's steps")


def _branches(parts: Sequence[Rows]) -> Rows:
    """Join features of the same rows: picked ones, or those of several linear layers."""
    first = parts[0]
    common = 0
    while all(
        common < len(part.layers) and part.layers[common] is first.layers[common] for part in parts
    ):
        common += 1
    base = replace(first, layers=first.layers[:common])
    branches = [fused(part.layers[common:]) for part in parts]
    after: Layers = ()
    while (last := _same_function(branches)) is not None:
        branches, after = [branch[:-1] for branch in branches], (last, *after)
    picked = [_columns(branch, base.width) for branch in branches]
    if None not in picked:
        rows = columns_of(base, [column for each in picked for column in each or ()])
        return replace(rows, layers=(*rows.layers, *after))
    maps = [affine(branch, base.width) for branch in branches]
    matrices = [each for each in maps if each is not None]
    if len(matrices) < len(maps):
        if looked_up(parts):
            return _tables(parts)
        raise Unserved("joins branches of the network that cannot be one layer")
    weight = torch.cat([matrix for matrix, _ in matrices]).float()
    bias = torch.cat([bias for _, bias in matrices]).float()
    rows = base.then(Linear(weight, bias if bias.any() else None))
    return replace(rows, layers=(*rows.layers, *after))


def _same_function(branches: Sequence[Layers]) -> Layer | None:
    """Return the activation that all branches end in; None if they do not."""
    last = branches[0][-1] if branches[0] else None
    for branch in branches:
        own = branch[-1] if branch else None
        if not isinstance(own, Activation) or not isinstance(last, Activation):
            return None
        if (own.function, own.slope) != (last.function, last.slope):
            return None
    return last


def _columns(branch: Layers, width: int) -> list[int] | None:
    """Return the columns that a branch of fused layers picks; None if it does anything else."""
    if not branch:
        return list(range(width))
    only = branch[0] if len(branch) == 1 else None
    return columns(only).tolist() if isinstance(only, Select) else None


def _tables(parts: Sequence[Rows]) -> Rows:
    return combined(parts, lambda tables: torch.cat(list(tables), 1))
