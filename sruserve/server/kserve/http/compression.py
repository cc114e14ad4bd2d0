"""gzip and deflate: bodies of requests unpacked within a bound, those of replies packed."""

import zlib

from sruserve.server.errors import BodyTooLarge, InvalidRequest
from sruserve.server.tasks.limits import FREE_BYTES

# What zlib calls the two: deflate is zlib's own format, as HTTP defines it.
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_MOST_ACCEPTED = 256  # characters of an `Accept-Encoding`
_LEVEL = 1  # numbers hardly get smaller at a higher one


class Unpacking:
    """A body as it was before its `Content-Encoding`, piece by piece, so that each can be counted.

    size: bytes that are unpacked. body: all of them, None until nothing is left to unpack.
    """

    def __init__(self, packed: bytes, encoding: str, limit: int) -> None:
        self.size, self._limit = 0, limit
        self.body: bytes | None = None
        self._name = encoding.strip().lower()
        self._rest = packed
        self._pieces: list[bytes] = []
        if self._name == "identity":
            self.size, self.body = len(packed), packed
        elif self._name in _WINDOWS:
            self._unpacker = zlib.decompressobj(_WINDOWS[self._name])
        else:
            raise InvalidRequest(
                f"the body's Content-Encoding is '{self._name[:50]}'; known are gzip and deflate"
            )

    @property
    def held(self) -> int:
        """How many bytes there are, with those that are still packed."""
        return len(self._rest) + self.size

    @property
    def next_bytes(self) -> int:
        """How many bytes the next piece has at most: as many as there are, so that they are few."""
        return min(max(FREE_BYTES, self.size), self._limit + 1 - self.size)

    def unpack(self) -> None:
        """Unpack the next piece; raises if it goes beyond the limit or is broken."""
        most = self.next_bytes
        try:
            piece = self._unpacker.decompress(self._rest, most)
        except zlib.error as error:
            raise InvalidRequest(f"the body is not {self._name}: {error}") from None
        self._rest = self._unpacker.unconsumed_tail
        self._pieces.append(piece)
        self.size += len(piece)
        if self.size > self._limit:
            raise BodyTooLarge(
                f"the decompressed {self._name} body is longer than {self._limit} bytes; send "
                "less at once, or ask the operator to raise SRUSERVE_MAX_BODY_BYTES"
            )
        if self._unpacker.eof and not self._unpacker.unused_data:
            self.body = b"".join(self._pieces)
        elif self._unpacker.eof or len(piece) < most:
            raise InvalidRequest(f"the body is not exactly one complete {self._name} stream")


def choose(accepted: str | None) -> str | None:
    """The encoding that a client takes, of its `Accept-Encoding`; None: none of ours.

    A header that is too long for the event loop counts as none.
    """
    if accepted is None or len(accepted) > _MOST_ACCEPTED:
        return None
    for part in accepted.lower().split(","):
        name, _, quality = part.partition(";")
        refused = quality.replace(" ", "").rstrip("0.") == "q="  # q=0, q=0.0
        if name.strip() in _WINDOWS and not refused:
            return name.strip()
    return None


def pack(body: bytes, encoding: str) -> bytes:
    """A body in an encoding that `choose` gave."""
    packer = zlib.compressobj(_LEVEL, wbits=_WINDOWS[encoding])
    return packer.compress(body) + packer.flush()
