"""Tables in LevelDB's format: sorted keys with their values, in blocks with checksums."""

from collections.abc import Iterator

from sruserve.model.importers.tensorflow.crc32c import masked_crc32c
from sruserve.model.importers.tensorflow.encoding import Damaged, varint

_FOOTER = 48
_MAGIC = bytes.fromhex("57fb808b247547db")
_TRAILER = 5  # the kind of compression, and a checksum
_LONGEST_KEY = 1024
_MAX_ENTRIES = 100_000


def entries(data: bytes) -> dict[bytes, bytes]:
    """Return all keys and values of a table; raises `Damaged`."""
    if len(data) < _FOOTER or data[-8:] != _MAGIC:
        raise Damaged("is no table: it does not end as one")
    footer = data[-_FOOTER:]
    _, place = varint(footer, 0)  # the handle of a block with statistics
    _, place = varint(footer, place)
    values: dict[bytes, bytes] = {}
    end = 0
    for _, handle in _block(data, footer[place:]):
        begin, size = _place(handle)
        if begin < end:  # so no byte is read twice
            raise Damaged("has blocks that overlap")
        end = begin + size
        for key, value in _block(data, handle):
            if len(values) == _MAX_ENTRIES or key in values:
                raise Damaged("has a key twice, or too many keys")
            values[key] = value
    return values


def _block(data: bytes, handle: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of the block at a handle, which is its offset and size."""
    begin, size = _place(handle)
    end = begin + size
    if end + _TRAILER > len(data) - _FOOTER or size < 4:
        raise Damaged("has a block that is not inside it")
    if data[end]:
        raise Damaged("has a compressed block, as TensorFlow does not write them")
    if masked_crc32c(data[begin : end + 1]) != int.from_bytes(data[end + 1 : end + 5], "little"):
        raise Damaged("has a block with a wrong checksum")
    restarts = int.from_bytes(data[end - 4 : end], "little")
    if 4 * restarts + 4 > size:
        raise Damaged("has a block that is shorter than its list of places")
    yield from _pairs(data[begin : end - 4 - 4 * restarts])


def _place(handle: bytes) -> tuple[int, int]:
    begin, place = varint(handle, 0)
    return begin, varint(handle, place)[0]


def _pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values; a key is stored without the beginning that it shares with the last."""
    key, place = b"", 0
    while place < len(block):
        shared, place = varint(block, place)
        own, place = varint(block, place)
        size, place = varint(block, place)
        if shared > len(key) or shared + own > _LONGEST_KEY or own + size > len(block) - place:
            raise Damaged("has an entry that does not fit its block, or a very long key")
        key = key[:shared] + block[place : place + own]
        place += own
        yield key, block[place : place + size]
        place += size
