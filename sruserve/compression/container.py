"""The parts of a compressed file after its head: blocks, and an end with a digest.

A block is: its bytes before compression, as a number; the bytes of its code, as a number; the code;
a checksum of what is decompressed; and one of the scores by which it is. A block of 0 bytes is the
end: the SHA-256 of the original follows, and nothing else.
"""

import zlib
from dataclasses import dataclass
from typing import BinaryIO

from sruserve.compression.errors import DamagedFileError

BLOCK_BYTES, MIN_BLOCK_BYTES = 1 << 12, 1 << 6
MAX_BLOCK_BYTES = 1 << 16  # so a byte of a hostile file is never more than 10,000 decompressed ones
_CODE_FACTOR = 8  # of a block's bytes: an id has at most 45 bits, and at least one byte
CHECKSUM_BYTES = 4


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the original: how many bytes it has, and its code.

    checksum: CRC-32 of its bytes. scores: CRC-32 of the network's scores of all its ids.
    """

    size: int
    code: bytes
    checksum: bytes
    scores: bytes


class Reader:
    """Reads exactly: an early end is an error.

    bytes: how many were read.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source, self.bytes = source, 0

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes; raises `DamagedFileError` if there are fewer."""
        data = b""
        while len(data) < size:
            more = self._source.read(size - len(data))
            if not more:
                raise DamagedFileError("the file is damaged: it ends too early")
            data += more
        self.bytes += size
        return data

    def number(self, limit: int, what: str) -> int:
        """Read a number of 7 bits a byte, the lowest first; raises if it is above `limit`."""
        value, shift, byte = 0, 0, 0x80
        while byte & 0x80:
            byte = self.read(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if value > limit or shift > limit.bit_length() + 7:
                raise DamagedFileError(
                    f"the file is damaged: {what} is {value:,} or more; the limit is {limit:,}"
                )
        return value

    def at_end(self) -> bool:
        """Whether nothing follows."""
        return not self._source.read(1)


def write_block(target: BinaryIO, block: Block) -> int:
    """Write a block; returns its bytes in the file."""
    data = _number(block.size) + _number(len(block.code)) + block.code
    data += block.checksum + block.scores
    target.write(data)
    return len(data)


def read_block(source: Reader) -> Block | None:
    """Read a block; None at the end of all blocks. Raises `DamagedFileError`."""
    size = source.number(MAX_BLOCK_BYTES, "the size of a block")
    if not size:
        return None
    length = source.number(max_code_bytes(size), "the length of a block's code")
    code = source.read(length)
    return Block(size, code, source.read(CHECKSUM_BYTES), source.read(CHECKSUM_BYTES))


def write_end(target: BinaryIO, digest: bytes) -> int:
    """Write the end of a file; returns its bytes."""
    target.write(_number(0) + digest)
    return 1 + len(digest)


def read_end(source: Reader, digest: bytes) -> None:
    """Read what follows the last block; raises `DamagedFileError` unless it is `digest` alone."""
    if source.read(len(digest)) != digest:
        raise DamagedFileError("the file is damaged: the original had another SHA-256")
    if not source.at_end():
        raise DamagedFileError("the file is damaged: bytes follow its end")


def max_code_bytes(size: int) -> int:
    """Return the most bytes of a block's code."""
    return _CODE_FACTOR * size + 16


def checksum(data: bytes) -> bytes:
    """Return the CRC-32 of data."""
    return zlib.crc32(data).to_bytes(CHECKSUM_BYTES)


def _number(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)
