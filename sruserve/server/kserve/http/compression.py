"""gzip and deflate: unpack request bodies within a limit, and pack replies."""

import zlib

from sruserve.server.errors import InvalidRequest
from sruserve.server.http.errors import BodyTooLarge, UnsupportedMediaType
from sruserve.server.tasks.limits import FREE_BYTES

# zlib's parameters of both; HTTP's deflate is zlib's own format.
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_MAX_ACCEPTED = 256  # characters of an `Accept-Encoding`
_LEVEL = 1  # higher levels hardly pack numbers better


class Unpacking:
    """Unpacks a body with a `Content-Encoding` piece by piece, so that each piece can be counted.

    size: unpacked bytes. body: the whole body, or None until it is complete.
    """

    def __init__(self, packed: bytes, encoding: str, limit: int) -> None:
        self.size, self._limit = 0, limit
        self.body: bytes | None = None
        self._name = encoding.strip().lower()
        self._packed = packed
        self._pieces: list[bytes] = []
        if self._name == "identity":
            self.size, self.body = len(packed), packed
        elif self._name in _WINDOWS:
            self._unpacker = zlib.decompressobj(_WINDOWS[self._name])
        else:
            raise UnsupportedMediaType(
                f"the body's Content-Encoding is '{self._name[:50]}'; use gzip or deflate"
            )

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory, packed and unpacked."""
        return len(self._packed) + self.size

    @property
    def next_bytes(self) -> int:
        """The largest size of the next piece: pieces double the body, so there are few of them."""
        return min(max(FREE_BYTES, self.size), self._limit + 1 - self.size)

    def unpack(self) -> None:
        """Unpack the next piece; raises if the body is over the limit or broken."""
        limit = self.next_bytes
        try:
            piece = self._unpacker.decompress(self._packed, limit)
        except zlib.error as error:
            raise InvalidRequest(
                f"the body is not {self._name}: {error}; correct its Content-Encoding"
            ) from None
        self._packed = self._unpacker.unconsumed_tail
        self._pieces.append(piece)
        self.size += len(piece)
        if self.size > self._limit:
            raise BodyTooLarge(
                f"the decompressed {self._name} body is longer than {self._limit} bytes; send "
                "less at once, or ask the operator to raise SRUSERVE_MAX_BODY_BYTES"
            )
        if self._unpacker.eof and not self._unpacker.unused_data:
            self.body = b"".join(self._pieces)
        elif self._unpacker.eof or len(piece) < limit:
            raise InvalidRequest(
                f"the body is not exactly one complete {self._name} stream: "
                "send it whole, and nothing else"
            )


def choose(accepted: str | None) -> str | None:
    """The first supported encoding in an `Accept-Encoding` header, or None.

    A header that is too long for the event loop is ignored.
    """
    if accepted is None or len(accepted) > _MAX_ACCEPTED:
        return None
    for part in accepted.lower().split(","):
        name, _, quality = part.partition(";")
        refused = quality.replace(" ", "").rstrip("0.") == "q="  # q=0, q=0.0
        if name.strip() in _WINDOWS and not refused:
            return name.strip()
    return None


def pack(body: bytes, encoding: str) -> bytes:
    """Pack a body in an encoding that `choose` returned."""
    packer = zlib.compressobj(_LEVEL, wbits=_WINDOWS[encoding])
    return packer.compress(body) + packer.flush()
