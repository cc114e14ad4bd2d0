"""Write checkpoints as TensorFlow does, also damaged ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sruserve.model.importers.tensorflow.crc32c import masked_crc32c

MAGIC = bytes.fromhex("57fb808b247547db")
Array = NDArray[Any]


def varint(value: int) -> bytes:
    more = [value >> shift & 0x7F | 0x80 for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([*more[:-1], more[-1] & 0x7F])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def fixed(field: int, value: int) -> bytes:
    return varint(field << 3 | 5) + value.to_bytes(4, "little")


def header(shards: int = 1, endianness: int = 0) -> bytes:
    return number(1, shards) + number(2, endianness) + message(3, number(1, 1))


def entry(array: Array, offset: int, dtype: int = 1, **changed: int) -> bytes:
    """changed: the size, checksum or number of the data file that is stored instead."""
    dims = b"".join(message(2, number(1, size)) for size in array.shape)
    checksum = changed.get("checksum", masked_crc32c(array.tobytes()))
    place = number(4, offset) + number(5, changed.get("size", array.nbytes))
    shard = number(3, changed.get("shard", 0))
    return number(1, dtype) + message(2, dims) + shard + place + fixed(6, checksum)


def block(pairs: Mapping[bytes, bytes]) -> bytes:
    body = b"".join(
        varint(0) + varint(len(key)) + varint(len(value)) + key + value
        for key, value in pairs.items()
    )
    return body + (0).to_bytes(4, "little") + (1).to_bytes(4, "little")


def stored(content: bytes, kind: int = 0) -> bytes:
    """A block with what follows it in a table."""
    whole = content + bytes([kind])
    return whole + masked_crc32c(whole).to_bytes(4, "little")


def handle(begin: int, size: int) -> bytes:
    return varint(begin) + varint(size)


def table(pairs: Mapping[bytes, bytes], kind: int = 0) -> bytes:
    return table_of([block(pairs)], kind)


def table_of(blocks: list[bytes], kind: int = 0, places: list[bytes] | None = None) -> bytes:
    """places: of the blocks, instead of the true ones."""
    data, handles = b"", []
    for content in blocks:
        handles.append(handle(len(data), len(content)))
        data += stored(content, kind)
    used = handles if places is None else places
    index = block({str(i).encode(): place for i, place in enumerate(used)})
    footer = handle(0, 0) + handle(len(data), len(index))
    return data + stored(index) + footer.ljust(40, b"\0") + MAGIC


def save_bundle(prefix: Path, arrays: Mapping[str, Array]) -> None:
    """Write variables of float32 as TensorFlow would."""
    data, entries = b"", {b"": header()}
    for name, array in sorted(arrays.items()):
        own = np.ascontiguousarray(array, np.float32)
        entries[name.encode()] = entry(own, len(data))
        data += own.tobytes()
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(entries))
    prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(data)
