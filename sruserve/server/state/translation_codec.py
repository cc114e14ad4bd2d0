"""Pack a `PartialTranslation` into bytes and unpack it, checking every length and range."""

import struct

import numpy as np
from numpy.typing import NDArray

from sruserve.model.translation.translator import Translator
from sruserve.server.engine.partial_translation import PartialTranslation
from sruserve.server.errors import StateNotFinite, StateTampered

# wait_k, max_tokens, place of the reason, log-probability; then the numbers of tokens, of ids
# whose rows follow, of floats of the decoder, and of bytes of the word
_HEAD = struct.Struct("<IIBdIIII")
_REASONS = (None, "stop", "length")
_MAX_COUNT = 1 << 31  # of a field of a request


def packed_size(translator: Translator, ids: int, tokens: int, word: str) -> int:
    """The most bytes of a packed translation of so many ids and tokens."""
    floats = ids * translator.memory_width + translator.encoder_width + translator.state_width
    return _HEAD.size + 4 * (floats + tokens) + len(word.encode())


def pack_translation(partial: PartialTranslation) -> bytes:
    """Head, tokens (int32), rows, encoder, decoder (float32), then the word; little-endian."""
    word = partial.word.encode()
    head = _HEAD.pack(
        partial.wait_k,
        partial.max_tokens,
        _REASONS.index(partial.finish_reason),
        partial.log_probability,
        len(partial.tokens),
        len(partial.rows),
        len(partial.decoder),
        len(word),
    )
    floats = (partial.rows, partial.encoder, partial.decoder)
    numbers = (np.ascontiguousarray(each, "<f4").tobytes() for each in floats)
    return b"".join((head, partial.tokens.astype("<i4").tobytes(), *numbers, word))


def unpack_translation(data: bytes, translator: Translator) -> PartialTranslation:
    """Read a translation by this system, or raise `StateTampered` or `StateNotFinite`.

    Up to two zero bytes may follow the word.
    """
    if len(data) < _HEAD.size:
        raise StateTampered("the state is incomplete; send it exactly as it was returned")
    wait_k, max_tokens, reason, total, tokens, ids, decoder, word = _HEAD.unpack_from(data)
    width = translator.memory_width
    counts = (ids * width, translator.encoder_width, decoder)
    end = _HEAD.size + 4 * (tokens + sum(counts)) + word
    if data[end:] not in (b"", b"\0", b"\0\0") or len(data) < end:
        raise StateTampered("the state's parts do not fit together; send it as it was returned")
    begun = max(0, ids - wait_k + 1)  # tokens that can have been written
    goes_on = reason == 0 and tokens <= begun and decoder == translator.state_width * (begun > 0)
    ended = 0 < reason < len(_REASONS) and not ids and not decoder
    if not (1 <= wait_k <= _MAX_COUNT >= max_tokens and (goes_on or ended)):
        raise StateTampered("the state's values are out of range; send it as it was returned")
    offset = _HEAD.size + 4 * tokens
    written = np.frombuffer(data, "<i4", tokens, _HEAD.size).astype(np.int64)
    if tokens and not 0 <= written.min() <= written.max() < translator.target_size:
        raise StateTampered("the state's tokens are out of range; send it as it was returned")
    parts: list[NDArray[np.float32]] = []
    for count in counts:
        parts.append(np.frombuffer(data, "<f4", count, offset).astype(np.float32))
        offset += 4 * count
    if not np.isfinite(total) or not all(np.isfinite(part).all() for part in parts):
        raise StateNotFinite(
            "the state contains NaN or infinity and cannot be continued; use an earlier state"
        )
    try:
        text = data[offset:end].decode()
    except UnicodeDecodeError:
        raise StateTampered("the state's text is not UTF-8; send it as it was returned") from None
    rows = parts[0].reshape(ids, width)
    return PartialTranslation(
        wait_k, max_tokens, text, _REASONS[reason], total, written, rows, parts[1], parts[2]
    )
