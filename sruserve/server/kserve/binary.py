"""Triton's binary tensors: little-endian numbers, and bytes after their 32-bit lengths."""

from math import prod
from struct import Struct

import numpy as np

from sruserve.server.errors import InvalidRequest
from sruserve.server.kserve.datatypes import BYTES, NUMBERS, check_count
from sruserve.server.kserve.messages import Tensor

MAX_ELEMENTS = 131_072  # of texts: as many as a JSON body may have values
_LENGTH = Struct("<I")


def read_binary(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> Tensor:
    """The tensor in an input's bytes; raises `InvalidRequest` if they do not fit exactly."""
    if datatype == BYTES:
        if (count := prod(shape)) > MAX_ELEMENTS:
            raise InvalidRequest(
                f"inference input '{name[:100]}' has more than {MAX_ELEMENTS} BYTES elements, "
                "which is the limit: send fewer at a time",
                param="inputs",
            )
        elements = _split(name, data, count)
        check_count(name, shape, len(elements))
        return Tensor(name, datatype, shape, elements)
    dtype = NUMBERS[datatype]
    count, remainder = divmod(len(data), dtype.itemsize)
    if remainder:
        raise InvalidRequest(
            f"inference input '{name[:100]}' has {len(data)} bytes, which is not a whole number "
            f"of {datatype} elements: send {dtype.itemsize} bytes for each",
            param="inputs",
        )
    check_count(name, shape, count)
    return Tensor(name, datatype, shape, np.frombuffer(data, dtype))


def write_binary(tensor: Tensor) -> bytes:
    """A tensor's bytes."""
    if isinstance(tensor.values, np.ndarray):
        return tensor.values.astype(NUMBERS[tensor.datatype], copy=False).tobytes()
    return b"".join(part for value in tensor.values for part in (_LENGTH.pack(len(value)), value))


def _split(name: str, data: memoryview, count: int) -> list[bytes]:
    """The elements, up to one more than `count`."""
    elements: list[bytes] = []
    at, end = 0, len(data)
    while at < end and len(elements) <= count:
        begin = at + _LENGTH.size
        if begin > end or begin + (length := _LENGTH.unpack_from(data, at)[0]) > end:
            raise InvalidRequest(
                f"inference input '{name[:100]}' is incomplete: each element follows its length "
                f"in 4 bytes, and element {len(elements)} exceeds the {end} bytes of the input",
                param="inputs",
            )
        at = begin + length
        elements.append(bytes(data[begin:at]))
    return elements
