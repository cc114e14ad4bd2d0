"""Triton's binary tensors: little-endian numbers, and bytes after their 32-bit lengths."""

from struct import Struct

import numpy as np

from sruserve.server.errors import InvalidRequest
from sruserve.server.kserve.datatypes import BYTES, NUMBERS, check_count
from sruserve.server.kserve.messages import Tensor

_LENGTH = Struct("<I")


def read_binary(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> Tensor:
    """The tensor in an input's bytes; raises `InvalidRequest` if they do not fit exactly."""
    if datatype == BYTES:
        elements = _split(name, data)
        check_count(name, shape, len(elements))
        return Tensor(name, datatype, shape, elements)
    dtype = NUMBERS[datatype]
    count, remainder = divmod(len(data), dtype.itemsize)
    if remainder:
        raise InvalidRequest(
            f"inference input '{name[:100]}' has {len(data)} bytes, which is not a whole number "
            f"of {datatype} elements",
            param="inputs",
        )
    check_count(name, shape, count)
    return Tensor(name, datatype, shape, np.frombuffer(data, dtype))


def write_binary(tensor: Tensor) -> bytes:
    """A tensor's bytes."""
    if isinstance(tensor.values, np.ndarray):
        return tensor.values.astype(NUMBERS[tensor.datatype], copy=False).tobytes()
    return b"".join(part for value in tensor.values for part in (_LENGTH.pack(len(value)), value))


def _split(name: str, data: memoryview) -> list[bytes]:
    elements: list[bytes] = []
    at, end = 0, len(data)
    while at < end:
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
