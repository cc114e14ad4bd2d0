"""Decompress a file: the network goes step by step through many blocks side by side."""

import hashlib
from collections.abc import Callable, Sequence
from itertools import islice
from typing import BinaryIO

from sruserve.compression.alphabet import Alphabet
from sruserve.compression.block_coder import BlockDecoder
from sruserve.compression.compress import Sizes
from sruserve.compression.container import Block, Reader, read_block, read_end
from sruserve.compression.errors import TooLongError
from sruserve.compression.header import Header
from sruserve.compression.predictor import MAX_LANES, Predictor
from sruserve.model.folder import Model

# A file of n bytes could state 10,000 n, and a second decodes some 10,000. A text has about 4 n.
_USUAL_RATIO, _SHORT_BYTES = 64, 1 << 20
_REPORT_STEPS = 256  # of blocks side by side, between two reports of the progress


def decompress(
    source: Reader,
    target: BinaryIO,
    header: Header,
    model: Model,
    any_build: bool = False,
    advance: Callable[[int], None] = lambda _: None,
    max_bytes: int | None = None,
    *,
    max_lanes: int = MAX_LANES,
    report_steps: int = _REPORT_STEPS,
) -> Sizes:
    """Write the original of a compressed file, of which `header` was read.

    any_build: try it also if another kernel, build or device made the file, and do not compare the
    bits of scores: checksums say whether the original comes out.
    advance: called with the bytes of the file that are done.
    max_bytes: of the original; None: `usual_bytes` of the file.
    max_lanes: blocks that are decoded side by side.
    report_steps: of these blocks, between two calls of `advance`.

    Raises `OtherBuildError`; `TooLongError` before it decodes a block that is too much;
    `DamagedFileError` or `DifferentBitsError` before it writes a byte of that block, or at the end;
    and `UnfitModelError`. Memory does not depend on the file's size.
    """
    header.check(model, any_build)
    predictor, alphabet = Predictor(model, max_lanes=max_lanes), Alphabet(model)
    size, digest, before = 0, hashlib.sha256(), source.bytes
    blocks = iter(lambda: read_block(source), None)
    while batch := list(islice(blocks, predictor.lanes)):
        _check_size(size + sum(block.size for block in batch), source.bytes, max_bytes)
        length = source.bytes - before
        for decoder in _decoded(batch, predictor, alphabet, length, advance, report_steps):
            data = decoder.finish(check_scores=not any_build)
            target.write(data)
            digest.update(data)
            size += len(data)
        before = source.bytes
    read_end(source, digest.digest())
    return Sizes(size, source.bytes)


def usual_bytes(compressed: int) -> int:
    """Return how many bytes an original has at most, unless its file is made to take long."""
    return max(_SHORT_BYTES, _USUAL_RATIO * compressed)


def _check_size(size: int, compressed: int, max_bytes: int | None) -> None:
    """Raise `TooLongError` if the blocks read so far state too many bytes."""
    limit = usual_bytes(compressed) if max_bytes is None else max_bytes
    if size > limit:
        raise TooLongError(
            f"the first {compressed:,} bytes of the file state an original of {size:,}, and it may "
            f"have {limit:,}: if you trust the file, allow more with --max-bytes"
        )


def _decoded(
    blocks: Sequence[Block],
    predictor: Predictor,
    alphabet: Alphabet,
    length: int,
    advance: Callable[[int], None],
    report_steps: int,
) -> list[BlockDecoder]:
    """Decode blocks side by side. length: their bytes in the file, which `advance` gets."""
    stated, reported = sum(block.size for block in blocks), 0
    decoders = [BlockDecoder(block, alphabet) for block in blocks]
    lanes, running = predictor.begin(len(blocks)), dict(enumerate(decoders))
    step = 0
    while running:
        ids = {lane: each.next(lanes.predictions[lane]) for lane, each in running.items()}
        known = {lane: token for lane, token in ids.items() if token is not None}
        running = {lane: running[lane] for lane in known}
        if known:
            lanes.advance(known)
        step += 1
        if step % report_steps == 0:
            done = length * sum(each.decoded for each in decoders) // stated
            advance(done - reported)
            reported = done
    advance(length - reported)
    return decoders
