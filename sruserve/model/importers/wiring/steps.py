"""A network as a chain of steps, in the order in which a file computes them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sruserve.model.importers.wiring.layers import (
    Activation,
    Layer,
    Linear,
    Norm,
    Scale,
    Select,
)
from sruserve.model.importers.wiring.network import End, Pooling

Array = NDArray[Any]
Cell = Literal["lstm", "gru", "gru_reset_before", "rnn_tanh", "rnn_relu"]


@dataclass(frozen=True, eq=False)
class Embed:
    """Ids to rows of a table (ids, width)."""

    name: str
    table: Array


@dataclass(frozen=True, eq=False)
class Rows:
    """A layer that maps each row by itself."""

    name: str
    layer: Layer


@dataclass(frozen=True, eq=False)
class Direction:
    """The weights of one direction, with the row blocks of `torch.nn`."""

    weight_ih: Array
    weight_hh: Array
    bias_ih: Array
    bias_hh: Array


@dataclass(frozen=True, eq=False)
class Recurrent:
    """A recurrent layer: the forward direction, then the backward one of a bidirectional layer."""

    name: str
    cell: Cell
    directions: tuple[Direction, ...]

    @property
    def hidden(self) -> int:
        return int(self.directions[0].weight_hh.shape[1])


@dataclass(frozen=True, eq=False)
class Pool:
    """A whole sequence to one row: the rows of some poolings, side by side."""

    name: str
    poolings: tuple[Pooling, ...]


@dataclass(frozen=True, eq=False)
class Softmax:
    """Scores to probabilities: only as the last step."""

    name: str


Step = Embed | Rows | Recurrent | Pool | Softmax


def same(first: Sequence[Step], second: Sequence[Step]) -> bool:
    """Whether two chains compute the same, with the same numbers."""
    return len(first) == len(second) and all(map(_equal, first, second))


def _equal(first: object, second: object) -> bool:
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return first is second or np.array_equal(first, second)
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.equal(first, second)
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(_equal, first, second))
    if is_dataclass(first) and type(first) is type(second):
        return all(_equal(getattr(first, f.name), getattr(second, f.name)) for f in fields(first))
    return first == second


def linear(name: str, weight: Array, bias: Array | None) -> Rows:
    """x W^T + b, with a weight (out, in)."""
    return Rows(name, Linear(tensor(weight), None if bias is None else tensor(bias)))


def scale(name: str, mean: Array, weight: Array, bias: Array) -> Rows:
    """(x - mean) * weight + bias, with one number of each for a column."""
    return Rows(name, Scale(*(tensor(each, np.float64) for each in (mean, weight, bias))))


def batch_norm(
    name: str, mean: Array, variance: Array, gamma: Array, beta: Array, eps: float
) -> Rows:
    """Batch norm at inference; the quotient is computed in float64."""
    return scale(name, mean, gamma / np.sqrt(variance.astype(np.float64) + eps), beta)


def layer_norm(name: str, gamma: Array, beta: Array, eps: float) -> Rows:
    """A layer norm over a row."""
    return Rows(name, Norm(tensor(gamma), tensor(beta), eps))


def activation(name: str, function: str, slope: float | None = None) -> Rows:
    """A function of each number, by its name in a model folder."""
    return Rows(name, Activation(function, slope))


def pool(name: str, kind: str, ends: tuple[End, ...] = ()) -> Pool:
    """One row for a sequence; `ends` are the parts of the end state, for kind "final"."""
    return Pool(name, (Pooling(kind, ends),))


def select(name: str, begin: int, end: int) -> Rows:
    """The columns from `begin` to `end`."""
    return Rows(name, Select(((begin, end),)))


def tensor(array: Array, dtype: type = np.float32) -> Tensor:
    """Return numbers of a file as a tensor of floats."""
    return torch.from_numpy(np.array(array, dtype, order="C"))
