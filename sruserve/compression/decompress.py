"""Decompress a file: the network goes step by step through many blocks side by side."""

import hashlib
from collections.abc import Callable, Sequence
from itertools import islice
from typing import BinaryIO

from sruserve.compression.alphabet import Alphabet
from sruserve.compression.block_coder import BlockDecoder
from sruserve.compression.compress import Sizes
from sruserve.compression.container import Block, Reader, read_block, read_end
from sruserve.compression.header import Header
from sruserve.compression.predictor import Predictor
from sruserve.model.folder import Model


def decompress(
    source: Reader,
    target: BinaryIO,
    header: Header,
    model: Model,
    any_build: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> Sizes:
    """Write the original of a compressed file, of which `header` was read.

    any_build: try it also if another kernel, build or device made the file, and do not compare the
    bits of scores: checksums say whether the original comes out.
    advance: called with the bytes of the file that are done.

    Raises `OtherBuildError`; `DamagedFileError` or `DifferentBitsError` before it writes a byte of
    that block, or at the end; and `UnfitModelError`. Memory does not depend on the file's size.
    """
    header.check(model, any_build)
    predictor, alphabet = Predictor(model), Alphabet(model)
    size, digest, before = 0, hashlib.sha256(), 0
    blocks = iter(lambda: read_block(source), None)
    while batch := list(islice(blocks, predictor.lanes)):
        for decoder in _decoded(batch, predictor, alphabet):
            data = decoder.finish(check_scores=not any_build)
            target.write(data)
            digest.update(data)
            size += len(data)
        advance(source.bytes - before)
        before = source.bytes
    read_end(source, digest.digest())
    return Sizes(size, source.bytes)


def _decoded(
    blocks: Sequence[Block], predictor: Predictor, alphabet: Alphabet
) -> list[BlockDecoder]:
    """Decode blocks side by side."""
    decoders = [BlockDecoder(block, alphabet) for block in blocks]
    lanes, running = predictor.begin(len(blocks)), dict(enumerate(decoders))
    while running:
        ids = {lane: each.next(lanes.predictions[lane]) for lane, each in running.items()}
        known = {lane: token for lane, token in ids.items() if token is not None}
        running = {lane: running[lane] for lane in known}
        if known:
            lanes.advance(known)
    return decoders
