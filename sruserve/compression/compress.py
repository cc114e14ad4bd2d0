"""Compress a file, block by block: the network reads each one in long passes."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from sruserve.compression.alphabet import Alphabet
from sruserve.compression.block_coder import FOREIGN_BITS, encode_block
from sruserve.compression.container import BLOCK_BYTES, write_block, write_end
from sruserve.compression.header import describe, write_header
from sruserve.compression.predictor import PASS_STEPS, Predictor
from sruserve.model.folder import Model


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a file before and after compression."""

    original: int
    compressed: int


def compress(
    source: BinaryIO,
    target: BinaryIO,
    model: Model,
    block_bytes: int = BLOCK_BYTES,
    advance: Callable[[int], None] = lambda _: None,
    *,
    foreign_bits: float = FOREIGN_BITS,
    pass_steps: int = PASS_STEPS,
) -> Sizes:
    """Write what `decompress` turns into the bytes of `source` again, whatever they are.

    block_bytes: of the original, up to `MAX_BLOCK_BYTES`; each block is read from the beginning, so
    smaller blocks compress less and decompress faster. advance: called with the bytes done.
    foreign_bits: see `encode_block`. pass_steps: of a block that are read in one pass.

    Raises `UnfitModelError`. Memory does not depend on the file's size.
    """
    predictor, alphabet = Predictor(model, pass_steps=pass_steps), Alphabet(model)
    written, size, digest = write_header(target, describe(model)), 0, hashlib.sha256()
    for data in _blocks(source, block_bytes):
        written += write_block(target, encode_block(data, alphabet, predictor, foreign_bits))
        digest.update(data)
        size += len(data)
        advance(len(data))
    written += write_end(target, digest.digest())
    return Sizes(size, written)


def _blocks(source: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield a file in blocks of up to `size` bytes, cut after a line or a word if there is one."""
    data = b""
    while more := source.read(size - len(data)):
        data += more
        if len(data) == size:
            end = _cut(data)
            yield data[:end]
            data = data[end:]
    if data:
        yield data


def _cut(data: bytes) -> int:
    """Return where to cut a block: in its last quarter, or at its end."""
    begin = len(data) * 3 // 4
    places = (data.rfind(space, begin) + 1 for space in (b"\n", b" "))
    return next((place for place in places if place), len(data))
