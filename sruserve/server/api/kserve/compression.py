"""gzip and deflate: bodies of requests unpacked within a bound, those of replies packed."""

import zlib

from sruserve.server.errors import BodyTooLarge, InvalidRequest

# What zlib calls the two: deflate is zlib's own format, as HTTP defines it.
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_LEVEL = 1  # numbers hardly get smaller at a higher one


def unpack(body: bytes, encoding: str | None, limit: int) -> bytes:
    """A body as it was before its `Content-Encoding`; raises rather than unpack over `limit`."""
    name = (encoding or "identity").strip().lower()
    if name == "identity":
        return body
    if name not in _WINDOWS:
        raise InvalidRequest(
            f"the body's Content-Encoding is '{name[:50]}'; known are gzip and deflate"
        )
    unpacker = zlib.decompressobj(_WINDOWS[name])
    try:
        unpacked = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is not {name}: {error}") from None
    if len(unpacked) > limit:
        raise BodyTooLarge(
            f"the body is longer than {limit} bytes without its {name}; send less at once, or ask "
            "the operator to raise SRUSERVE_MAX_BODY_BYTES"
        )
    if not unpacker.eof or unpacker.unused_data:
        raise InvalidRequest(f"the body is not one whole {name} stream")
    return unpacked


def choose(accepted: str | None) -> str | None:
    """The encoding that a client takes, of its `Accept-Encoding`; None: none of ours."""
    for part in (accepted or "").lower().split(","):
        name, _, quality = part.partition(";")
        refused = quality.replace(" ", "").rstrip("0.") == "q="  # q=0, q=0.0
        if name.strip() in _WINDOWS and not refused:
            return name.strip()
    return None


def pack(body: bytes, encoding: str) -> bytes:
    """A body in an encoding that `choose` gave."""
    packer = zlib.compressobj(_LEVEL, wbits=_WINDOWS[encoding])
    return packer.compress(body) + packer.flush()
