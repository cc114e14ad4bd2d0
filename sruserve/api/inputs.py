"""The inputs of a call: one or several texts, ids or features, in pieces of bounded size."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sruserve.server.errors import InvalidRequest

One = str | list[int] | tuple[int, ...] | NDArray[Any]
"""One input: a text, token ids, or features (steps, width)."""
Several = list[str] | tuple[str, ...] | list[list[int]] | list[NDArray[Any]]
"""Several inputs of a kind."""

MAX_INPUTS, MAX_SIZE = 256, 256 << 10  # of a piece; size in characters, ids or features
_FEATURE_AXES = 2


class Inputs:
    """The inputs of a call and what goes with each.

    single: the call had one input, so it returns one result.
    """

    def __init__(self, inputs: Any, pair: Any = None, state: Any = None) -> None:
        self.single = _is_one(inputs)
        self.values = [inputs] if self.single else list(inputs)
        self._pairs = None
        if pair is not None:
            self._pairs = [pair] if _is_one(pair) else list(pair)
            _check_count("pair", len(self._pairs), len(self.values))
        self._states = None if state is None or isinstance(state, str) else list(state)
        self._state = state if isinstance(state, str) else None
        if self._states is not None:
            _check_count("state", len(self._states), len(self.values))

    def pieces(self, max_size: int = MAX_SIZE) -> Iterator[dict[str, Any]]:
        """The fields of requests with these inputs, in order. max_size: of one with several."""
        first = size = 0
        for index, value in enumerate(self.values):
            if first < index and (size + len(value) > max_size or index - first == MAX_INPUTS):
                yield self._fields(first, index)
                first, size = index, 0
            size += len(value)
        if self.values:
            yield self._fields(first, len(self.values))

    def _fields(self, first: int, end: int) -> dict[str, Any]:
        fields: dict[str, Any] = _contents(self.values[first:end])
        if self._pairs is not None:
            fields["pair"] = [_plain(pair) for pair in self._pairs[first:end]]
        if self._states is not None:
            fields["state"] = self._states[first:end]
        elif self._state is not None:
            fields["state"] = self._state
        return fields


def _contents(values: Sequence[Any]) -> dict[str, Any]:
    """The field of some inputs. Features stay arrays, which are set after validation."""
    features = [_is_features(value) for value in values]
    if not any(features):
        return {"input": [_plain(value) for value in values]}
    if not all(features):
        raise InvalidRequest("send either texts and ids, or features", param="input")
    return {"features": [np.asarray(value, np.float32) for value in values]}


def _is_one(inputs: Any) -> bool:
    if isinstance(inputs, str):
        return True
    if isinstance(inputs, np.ndarray):
        return _is_features(inputs) or (inputs.ndim == 1 and inputs.dtype.kind in "iu")
    if not isinstance(inputs, Iterable) or isinstance(inputs, (bytes, Mapping)):
        raise InvalidRequest(
            f"an input is a text, token ids, or an array of features, or a list of these; this is "
            f"of type {type(inputs).__name__}",
            param="input",
        )
    if not isinstance(inputs, (list, tuple)):
        return False
    first = next(iter(inputs), None)
    return isinstance(first, (int, np.integer)) and not isinstance(first, bool)


def _is_features(value: Any) -> bool:
    array = isinstance(value, np.ndarray) and value.ndim == _FEATURE_AXES
    return array and value.dtype.kind in "fiu"


def _plain(value: Any) -> Any:
    """A text, or ids as a list."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


def _check_count(field: str, count: int, inputs: int) -> None:
    if count != inputs:
        raise InvalidRequest(
            f"'{field}' has {count} entries for {inputs} inputs; give one for each", param=field
        )
