"""KServe's datatypes and shapes."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from sruserve.server.errors import InvalidRequest
from sruserve.server.kserve.messages import Tensor

BYTES = "BYTES"
NUMBERS: dict[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in (
        ("BOOL", "?"), ("UINT8", "u1"), ("UINT16", "<u2"), ("UINT32", "<u4"), ("UINT64", "<u8"),
        ("INT8", "i1"), ("INT16", "<i2"), ("INT32", "<i4"), ("INT64", "<i8"), ("FP16", "<f2"),
        ("FP32", "<f4"), ("FP64", "<f8"),
    )
}  # fmt: skip


def check_datatype(name: str, datatype: str) -> None:
    """Raise if an input has a datatype that nothing here reads."""
    if datatype != BYTES and datatype not in NUMBERS:
        raise InvalidRequest(
            f"inference input '{name[:100]}' has the unknown data-type '{datatype[:20]}'; known "
            f"are {BYTES}, {', '.join(NUMBERS)}",
            param="inputs",
        )


def check_count(name: str, shape: Sequence[int], count: int) -> None:
    """Raise if an input of a shape does not have `count` elements."""
    expected = prod(shape)
    if count != expected:
        raise InvalidRequest(
            f"inference input '{name[:100]}' has the shape {shown(shape)} of {_number(expected)} "
            f"elements, but {count} elements were sent",
            param="inputs",
        )


def text_tensor(name: str, shape: tuple[int, ...], texts: Sequence[str]) -> Tensor:
    """A tensor of texts."""
    return Tensor(name, BYTES, shape, [text.encode() for text in texts])


def number_tensor(name: str, datatype: str, shape: tuple[int, ...], values: Any) -> Tensor:
    """A tensor of numbers; None is NaN."""
    return Tensor(name, datatype, shape, np.asarray(values, NUMBERS[datatype]).reshape(-1))


def shown(shape: Sequence[int]) -> str:
    """A shape as Triton writes it: [-1,8]."""
    return f"[{','.join(map(_number, shape[:16]))}{',…' if len(shape) > 16 else ''}]"


def _number(value: int) -> str:
    """A number that a client chose; Python refuses to print the longest ones."""
    return str(value) if value.bit_length() < 100 else "too many"
