"""Compress and decompress bytes in memory."""

import io
from typing import Any

from sruserve.compression.compress import compress
from sruserve.compression.container import BLOCK_BYTES, Reader
from sruserve.compression.decompress import decompress
from sruserve.compression.header import read_header
from sruserve.model.folder import Model


def compressed(model: Model, data: bytes, block_bytes: int = BLOCK_BYTES, **options: Any) -> bytes:
    """The file that `compress` makes of bytes."""
    target = io.BytesIO()
    sizes = compress(io.BytesIO(data), target, model, block_bytes, **options)
    file = target.getvalue()
    assert (sizes.original, sizes.compressed) == (len(data), len(file))
    return file


def decompressed(
    model: Model,
    file: bytes,
    any_build: bool = False,
    max_bytes: int | None = None,
    **options: Any,
) -> bytes:
    """The original of a file."""
    source, target, parts = Reader(io.BytesIO(file)), io.BytesIO(), list[int]()
    header = read_header(source)
    sizes = decompress(source, target, header, model, any_build, parts.append, max_bytes, **options)
    assert sum(parts) <= len(file)
    assert min(parts, default=0) >= 0
    assert (sizes.original, sizes.compressed) == (len(target.getvalue()), len(file))
    return target.getvalue()
