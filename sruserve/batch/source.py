"""Read an input line by line, each of bounded length, and digest what has been read."""

import hashlib
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

from sruserve.batch.files import is_regular

MAX_LINE_BYTES = 64 << 20
_PART = 1 << 20


class Source:
    """The lines of a file.

    waits: reading may wait for whoever writes it.
    bytes, line: how many bytes and lines have been read.
    mark: a line whose digest is kept. marked: that digest, once the line has been read.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.sha256()
        self.waits = not is_regular(file)
        self._parts: list[bytes] = []  # that are still to be digested, of `_undigested` bytes
        self._undigested = 0
        self.bytes = self.line = self.mark = 0
        self.marked = ""

    @property
    def digest(self) -> str:
        """The SHA-256 of all that has been read, in hex."""
        self._digest_parts()
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[bytes | None]:
        """Yield each line with its end; None for a line that is too long."""
        for line in iter(partial(self._file.readline, MAX_LINE_BYTES), b""):
            self._take(line)
            too_long = len(line) == MAX_LINE_BYTES and not line.endswith(b"\n")
            if too_long:
                self._take_rest()
            self.line += 1
            if self.line == self.mark:
                self.marked = self.digest
            yield None if too_long else line

    def _take_rest(self) -> None:
        """Read on to the end of a line."""
        for part in iter(partial(self._file.readline, _PART), b""):
            self._take(part)
            if part.endswith(b"\n"):
                return

    def _take(self, part: bytes) -> None:
        """Count a part, and digest it later, with others: one call for each takes longer."""
        self._parts.append(part)
        self._undigested += len(part)
        self.bytes += len(part)
        if self._undigested > _PART:
            self._digest_parts()

    def _digest_parts(self) -> None:
        self._digest.update(b"".join(self._parts))
        self._parts.clear()
        self._undigested = 0
