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
    """Raise if the server does not support the datatype of an input."""
    if datatype != BYTES and datatype not in NUMBERS:
        raise InvalidRequest(
            f"inference input '{name[:100]}' has the unknown data-type '{datatype[:20]}'; use "
            f"one of {BYTES}, {', '.join(NUMBERS)}",
            param="inputs",
        )


def check_count(name: str, shape: Sequence[int], count: int) -> None:
    """Raise if `count` is not the number of elements of an input's shape."""
    expected = prod(shape)
    if count != expected:
        raise InvalidRequest(
            f"inference input '{name[:100]}' has the shape {shape_text(shape)} of "
            f"{_number(expected)} elements, but {count} elements were sent: correct one of them",
            param="inputs",
        )


def text_tensor(name: str, shape: tuple[int, ...], texts: Sequence[str]) -> Tensor:
    """A tensor of texts."""
    return Tensor(name, BYTES, shape, [text.encode() for text in texts])


def number_tensor(name: str, datatype: str, shape: tuple[int, ...], values: Any) -> Tensor:
    """A tensor of numbers; None is NaN."""
    return Tensor(name, datatype, shape, np.asarray(values, NUMBERS[datatype]).reshape(-1))


def shape_text(shape: Sequence[int]) -> str:
    """A shape as Triton writes it: [-1,8]."""
    return f"[{','.join(map(_number, shape[:16]))}{',…' if len(shape) > 16 else ''}]"


def _number(value: int) -> str:
    """A client's number as text; Python refuses to print very long ones."""
    return str(value) if value.bit_length() < 100 else "too many"
