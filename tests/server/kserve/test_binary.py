"""Binary tensors of texts: no more is read than the shape has elements, and than the limit."""

from struct import pack

import pytest

from sruserve.server.errors import InvalidRequest
from sruserve.server.kserve.binary import MAX_ELEMENTS, read_binary

EMPTY = pack("<I", 0)


def test_a_tensor_of_too_many_texts_is_refused_before_it_is_read() -> None:
    with pytest.raises(InvalidRequest, match="more than 131072 BYTES elements"):
        read_binary("text", "BYTES", (MAX_ELEMENTS + 1,), memoryview(b"\x01"))


def test_texts_beyond_the_shape_are_not_read() -> None:
    data = memoryview(EMPTY * 2 + pack("<I", 5))  # the third one is incomplete
    with pytest.raises(InvalidRequest, match="is incomplete"):
        read_binary("text", "BYTES", (3,), data)
    with pytest.raises(InvalidRequest, match="the shape \\[1\\] of 1 elements, but 2"):
        read_binary("text", "BYTES", (1,), data)
