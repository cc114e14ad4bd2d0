"""Read a safetensors file into the process's own memory.

The safetensors library maps the file instead. Then overwriting the file changes the weights of a
running server, and truncating it ends the server with SIGBUS.
"""

import os
from collections.abc import Mapping
from errno import ENOMEM
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from sruserve.model.files import memory_bytes, open_regular
from sruserve.model.json_names import RepeatedName, load_json
from sruserve.model.machine import available_memory

MAX_HEADER_BYTES = 16 << 20  # about 100,000 tensors
_MAX_DIMENSIONS = 64  # torch's limit
_METADATA = "__metadata__"
_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16,
    "I16": torch.int16, "U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32,
    "F64": torch.float64, "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}  # fmt: skip


def read_tensors(
    path: Path, max_bytes: int | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a file once; returns its tensors by name, and its metadata.

    max_bytes: limit on all tensors together; None: the bytes of this machine's memory. The file
        must fit in the memory that is available now, too.

    Raises `SafetensorError` or `OSError`.
    """
    max_file_bytes = memory_bytes()
    if max_bytes is not None:
        max_file_bytes = min(max_file_bytes, max_bytes + MAX_HEADER_BYTES)
    with open_regular(path, max_file_bytes) as file:
        size, room = os.fstat(file.fileno()).st_size, available_memory()
        if size > room:
            problem = f"it has {size:,} bytes, and {room:,} bytes of memory are available now"
            raise OSError(ENOMEM, f"{problem}: free some, or use a larger machine", str(path))
        entries = _read_header(file)
        metadata = entries.pop(_METADATA, {})
        if not isinstance(metadata, dict):
            raise SafetensorError("the header's metadata is not a JSON object")
        places = sorted(_place(name, entry) for name, entry in entries.items())
        tensors, at, data_bytes = {}, 0, size - file.tell()
        for begin, end, name in places:
            if begin != at:
                raise SafetensorError(f"{_short(name)} begins at byte {begin}, not at byte {at}")
            if end > data_bytes:
                raise SafetensorError(f"the file is truncated: it ends in {_short(name)}")
            tensors[name] = _read_tensor(file, name, entries[name], end - begin)
            at = end
        if file.read(1):
            raise SafetensorError("the file has extra bytes after the last tensor")
    return {name: tensors[name] for name in entries}, metadata


def _read_header(file: FileIO) -> dict[str, Any]:
    size = int.from_bytes(_read(file, 8), "little")
    if size > MAX_HEADER_BYTES:
        raise SafetensorError(f"its header has {size:,} bytes; the limit is {MAX_HEADER_BYTES:,}")
    try:
        header = load_json(_read(file, size))
    except RepeatedName as error:
        raise SafetensorError(f"its header {error}") from None
    except (ValueError, RecursionError) as error:
        raise SafetensorError(f"its header is not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise SafetensorError("its header is not a JSON object")
    return header


def _place(name: str, entry: Any) -> tuple[int, int, str]:
    """Return a tensor's begin and end, in bytes after the header, if they fit its shape."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [begin, end, *shape]
    except (KeyError, TypeError, ValueError):
        raise SafetensorError(
            f"{_short(name)} has no valid dtype, shape and data_offsets in the header"
        ) from None
    if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        raise SafetensorError(
            f"{_short(name)}: shape and data_offsets must hold integers from 0 to 2**63 - 1"
        )
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise SafetensorError(
            f"{_short(name)} has dtype {_short(str(dtype))}, which is unsupported"
        )
    if len(shape) > _MAX_DIMENSIONS:
        raise SafetensorError(
            f"{_short(name)} has {len(shape)} dimensions; the limit is {_MAX_DIMENSIONS}"
        )
    if prod(size for size in shape if size) >= 2**63:  # torch checks this even if a size is 0
        raise SafetensorError(f"{_short(name)} has too many numbers: 2**63 or more")
    size = prod(shape) * _DTYPES[dtype].itemsize
    if end - begin != size:
        raise SafetensorError(
            f"{_short(name)} has {end - begin} bytes, but its shape and dtype need {size}"
        )
    return begin, end, name


def _read_tensor(file: FileIO, name: str, entry: Mapping[str, Any], size: int) -> Tensor:
    content = torch.empty(size, dtype=torch.uint8)
    view, at = content.numpy().data, 0
    while at < size:
        read = file.readinto(view[at:])
        if not read:
            raise SafetensorError(f"the file is truncated: it ends in {_short(name)}")
        at += read
    return content.view(_DTYPES[entry["dtype"]]).view(entry["shape"])


def _read(file: FileIO, size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise SafetensorError("the file is truncated: it ends in its header")
    return content


def _short(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:79] + "…")
