"""Read a safetensors file into tensors of the process's own.

The library maps the file instead: then a copy over it changes the weights of a running server, and
a cut ends it by a signal.
"""

import json
import os
from collections.abc import Mapping
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from sruserve.model.files import memory_bytes, open_regular

MOST_HEADER_BYTES = 16 << 20  # 100,000 tensors
_MOST_DIMENSIONS = 64  # as many as torch allows
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
    path: Path, most_bytes: int | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file by name, and its metadata; the file is read once.

    most_bytes: of all tensors; None: as many as this machine's memory has.

    Raises `SafetensorError` or `OSError`.
    """
    most = memory_bytes()
    if most_bytes is not None:
        most = min(most, most_bytes + MOST_HEADER_BYTES)
    with open_regular(path, most) as file:
        entries = _read_header(file)
        metadata = entries.pop(_METADATA, {})
        if not isinstance(metadata, dict):
            raise SafetensorError("the header's metadata is no object")
        places = sorted(_place(name, entry) for name, entry in entries.items())
        tensors, at, there = {}, 0, os.fstat(file.fileno()).st_size - file.tell()
        for begin, end, name in places:
            if begin != at:
                raise SafetensorError(f"{_short(name)} begins at {begin} and should at {at}")
            if end > there:
                raise SafetensorError(f"the file ends in {_short(name)}")
            tensors[name] = _read_tensor(file, name, entries[name], end - begin)
            at = end
        if file.read(1):
            raise SafetensorError("there are bytes behind the last tensor")
    return {name: tensors[name] for name in entries}, metadata


def _read_header(file: FileIO) -> dict[str, Any]:
    size = int.from_bytes(_read(file, 8), "little")
    if size > MOST_HEADER_BYTES:
        raise SafetensorError(f"its header has {size:,} bytes and may have {MOST_HEADER_BYTES:,}")
    try:
        header = json.loads(_read(file, size), object_pairs_hook=_named_once)
    except (ValueError, RecursionError) as error:
        raise SafetensorError(f"its header is no JSON of use: {error}") from None
    if not isinstance(header, dict):
        raise SafetensorError("its header is no object")
    return header


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, in which no name may come twice: readers differ in which of the two counts."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise SafetensorError(f"its header has the name {_short(name)} twice")
        found[name] = value
    return found


def _place(name: str, entry: Any) -> tuple[int, int, str]:
    """Where a tensor begins and ends behind the header, once it was seen to fit its shape."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [begin, end, *shape]
    except (KeyError, TypeError, ValueError):
        raise SafetensorError(f"{_short(name)} is described by no dtype, shape and place") from None
    if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        raise SafetensorError(f"{_short(name)} has a shape or a place of other than whole numbers")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise SafetensorError(f"{_short(name)} holds {_short(str(dtype))}, which is not supported")
    if len(shape) > _MOST_DIMENSIONS:
        raise SafetensorError(f"{_short(name)} has {len(shape)} dimensions")
    if prod(size for size in shape if size) >= 2**63:  # torch counts even where one of them is 0
        raise SafetensorError(f"{_short(name)} has a shape of too many numbers")
    if end - begin != prod(shape) * _DTYPES[dtype].itemsize:
        raise SafetensorError(f"{_short(name)} has {end - begin} bytes, and its shape {shape}")
    return begin, end, name


def _read_tensor(file: FileIO, name: str, entry: Mapping[str, Any], size: int) -> Tensor:
    content = torch.empty(size, dtype=torch.uint8)
    view, at = content.numpy().data, 0
    while at < size:
        read = file.readinto(view[at:])
        if not read:
            raise SafetensorError(f"the file ends in {_short(name)}")
        at += read
    return content.view(_DTYPES[entry["dtype"]]).view(entry["shape"])


def _read(file: FileIO, size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise SafetensorError("the file ends in its header")
    return content


def _short(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:79] + "…")
