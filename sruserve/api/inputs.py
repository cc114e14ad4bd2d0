"""The inputs of a call: one or several texts, ids or features, in pieces of bounded size."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sruserve.model.errors import TextError
from sruserve.server.errors import InvalidRequest, UnfitInput


class SupportsArray(Protocol):
    """An array of NumPy, or what NumPy makes one of, such as a tensor of torch on the CPU."""

    def __array__(self) -> NDArray[Any]: ...


One = str | list[int] | tuple[int, ...] | list[list[float]] | SupportsArray
"""One input: a text, token ids, or features (steps, width)."""
Several = list[str] | tuple[str, ...] | list[list[int]] | Sequence[SupportsArray]
"""Several inputs of a kind."""

MAX_INPUTS, MAX_SIZE = 256, 256 << 10  # of a piece; size in characters, ids or features
_FEATURE_AXES = 2


class Inputs:
    """The inputs of a call and what goes with each.

    single: the call had one input, so it returns one result.
    """

    def __init__(self, inputs: Any, pair: Any = None, state: Any = None) -> None:
        inputs = _as_array(inputs)
        self.single = _is_one(inputs)
        self.values = [inputs] if self.single else [_as_array(each) for each in inputs]
        for value in self.values:
            if not _is_input(value):
                raise _unreadable(value)
        self._pairs = None
        if pair is not None:
            pair = _as_array(pair)
            self._pairs = [pair] if _is_one(pair) else [_as_array(each) for each in pair]
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


def _as_array(value: Any) -> Any:
    """A tensor, or features in lists, as an array; anything else as it is."""
    if isinstance(value, (str, np.ndarray)):
        return value
    if hasattr(value, "__array__") and hasattr(value, "ndim"):
        return np.asarray(value)
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, list) and first and isinstance(first[0], float):
        try:
            return np.array(value, np.float32)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(
                f"features are lists of numbers, equally long, one for each step: {error}",
                param="features",
            ) from error
    return value


def _is_one(inputs: Any) -> bool:
    if isinstance(inputs, str):
        return True
    if isinstance(inputs, np.ndarray):
        if not inputs.ndim:
            raise _unreadable(inputs)
        return _is_features(inputs) or (inputs.ndim == 1 and inputs.dtype.kind in "iu")
    if not isinstance(inputs, Iterable) or isinstance(inputs, (bytes, Mapping)):
        raise _unreadable(inputs)
    if not isinstance(inputs, (list, tuple)):
        return False
    first = next(iter(inputs), None)
    return isinstance(first, (int, np.integer)) and not isinstance(first, bool)


def _is_features(value: Any) -> bool:
    array = isinstance(value, np.ndarray) and value.ndim == _FEATURE_AXES
    return array and value.dtype.kind in "fiu"


def _is_input(value: Any) -> bool:
    """Whether a value may be one input; the fields of requests check the numbers in it."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, (str, list, tuple))


def _unreadable(value: Any) -> InvalidRequest:
    return InvalidRequest(
        "an input is a text, token ids, or an array of features, or a list of these; this is of "
        f"type {type(value).__name__}",
        param="input",
    )


def check_texts(field: str, value: Any) -> None:
    """Raise `UnfitInput` for a text that no UTF-8 encodes, also in lists of texts."""
    if isinstance(value, str):
        if value.isascii():
            return
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UnfitInput(
                f"'{field}' has {value[error.start]!r}, one half of a surrogate pair, which is no "
                "character: remove it, or send both halves as one character",
                code=TextError.code,
                param=field,
            ) from None
    elif isinstance(value, Mapping):
        for each in value.values():
            check_texts(field, each)
    elif isinstance(value, (list, tuple)) and value and not isinstance(value[0], (int, float)):
        if set(map(type, value)) == {str} and "".join(value).isascii():
            return  # without a call for each of thousands
        for each in value:
            check_texts(field, each)


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
