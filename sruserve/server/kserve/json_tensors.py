"""Tensors as JSON: nested or flat lists in, flat lists out, no number rounded."""

from itertools import chain
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sruserve.server.errors import InvalidRequest
from sruserve.server.kserve.datatypes import BYTES, NUMBERS, check_count
from sruserve.server.kserve.messages import Tensor
from sruserve.server.tasks.encode import listed

_TYPES: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}


def read_json(name: str, datatype: str, shape: tuple[int, ...], data: list[Any]) -> Tensor:
    """The tensor of an input's `data`; raises `InvalidRequest`."""
    flat = _flat(name, shape, data)
    check_count(name, shape, len(flat))
    if datatype == BYTES:
        _check_types(name, datatype, flat, {str})
        return Tensor(name, datatype, shape, [text.encode() for text in flat])
    dtype = NUMBERS[datatype]
    _check_types(name, datatype, flat, _TYPES[dtype.kind])
    return Tensor(name, datatype, shape, _numbers(name, datatype, flat))


def json_values(tensor: Tensor) -> list[Any]:
    """The `data` of an output. A float32 becomes the double with the same value."""
    if isinstance(tensor.values, np.ndarray):
        return listed(tensor.values)
    return [value.decode() for value in tensor.values]


def _flat(name: str, shape: tuple[int, ...], data: list[Any]) -> list[Any]:
    count = prod(shape)
    while data and isinstance(data[0], list):  # the JSON parser limits the depth
        if len(data) > count:
            check_count(name, shape, len(data))
        if not all(isinstance(part, list) for part in data):
            raise InvalidRequest(
                f"'data' of inference input '{name[:100]}' mixes lists and values: send "
                "a flat list, or lists that are nested equally deep",
                param="inputs",
            )
        data = list(chain.from_iterable(data))
    return data


def _check_types(name: str, datatype: str, flat: list[Any], allowed: set[type]) -> None:
    if not set(map(type, flat)) <= allowed:
        raise InvalidRequest(
            f"'data' of inference input '{name[:100]}' has elements that are not of data-type "
            f"{datatype}: send such elements, or state their own data-type",
            param="inputs",
        )


def _numbers(name: str, datatype: str, flat: list[Any]) -> NDArray[Any]:
    try:
        with np.errstate(over="ignore"):
            return np.array(flat, NUMBERS[datatype])
    except OverflowError:
        raise InvalidRequest(
            f"'data' of inference input '{name[:100]}' has numbers beyond {datatype}'s range: "
            "send numbers within it",
            param="inputs",
        ) from None
