"""Read an input line by line, each of bounded length, and digest what has been read."""

import hashlib
from collections.abc import Iterator
from functools import partial
from io import BufferedReader
from typing import Any, BinaryIO, cast

from sruserve.batch.files import is_regular

MAX_LINE_BYTES = 64 << 20
BLOCK_LINES, BLOCK_BYTES = 128, 4 << 10  # of what is read together, about, at first
MAX_BLOCK_LINES, MAX_BLOCK_BYTES = 1024, 64 << 10
_PART_BYTES = 1 << 20
_BUFFER = 4 * MAX_BLOCK_BYTES  # looking for the end of a block copies it


class Source:
    """The lines of a file.

    max_line_bytes: of a line; a longer one is read in parts of `part_bytes`, and dropped.
    waits: reading may wait for its writer.
    block_lines, block_bytes: of what is read together, about; of lines, `first_lines` at first.
    bytes, line: how many bytes and lines have been read.
    mark: a line whose digest is kept. marked: that digest, once the line has been read.
    """

    def __init__(
        self,
        file: BinaryIO,
        *,
        max_line_bytes: int = MAX_LINE_BYTES,
        part_bytes: int = _PART_BYTES,
        first_lines: int = BLOCK_LINES,
    ) -> None:
        self.max_line_bytes, self._part_bytes = max_line_bytes, part_bytes
        self.waits = not is_regular(file)
        if not (self.waits and isinstance(file, BufferedReader)):
            file = BufferedReader(cast(Any, file), _BUFFER)
        self._file, self._digest = file, hashlib.sha256()
        self._first_lines = first_lines
        self.block_lines, self.block_bytes = first_lines, BLOCK_BYTES
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
        for line in iter(partial(self._file.readline, self.max_line_bytes), b""):
            self._take(line)
            too_long = len(line) == self.max_line_bytes and not line.endswith(b"\n")
            if too_long:
                self._take_rest()
            self.line += 1
            if self.line == self.mark:
                self.marked = self.digest
            yield None if too_long else line

    def blocks(self) -> Iterator[bytes | None]:
        """Yield lines in blocks of UTF-8, or one alone; None for a line that is too long.

        Up to the line `mark`, each is alone.
        """
        for line in self:
            if line is None or self.line < self.mark or not _is_utf8(line):
                yield line
            else:  # a line without an end is the last one, even if the file grows
                yield line + self._take_more() if line.endswith(b"\n") else line

    def resize_blocks(self, lines: int, size: int) -> None:
        """Read about so many lines or bytes together from now on, but no fewer than at first."""
        self.block_lines = max(self._first_lines, min(lines, MAX_BLOCK_LINES))
        self.block_bytes = max(BLOCK_BYTES, min(size, MAX_BLOCK_BYTES))

    def _take_more(self) -> bytes:
        """Read lines that are at hand, to the end of a block; none if they are not UTF-8."""
        at_hand = self._file.peek()[: self.block_bytes]
        parts = at_hand.split(b"\n", self.block_lines - 1)
        lines = at_hand[: len(at_hand) - len(parts[-1])]
        if not _is_utf8(lines):
            return b""
        self._take(self._file.read(len(lines)))
        self.line += len(parts) - 1
        return lines

    def _take_rest(self) -> None:
        """Read on to the end of a line."""
        for part in iter(partial(self._file.readline, self._part_bytes), b""):
            self._take(part)
            if part.endswith(b"\n"):
                return

    def _take(self, part: bytes) -> None:
        """Count a part, and digest it later, with others: one call for each takes longer."""
        self._parts.append(part)
        self._undigested += len(part)
        self.bytes += len(part)
        if self._undigested > self._part_bytes:
            self._digest_parts()

    def _digest_parts(self) -> None:
        self._digest.update(b"".join(self._parts))
        self._parts.clear()
        self._undigested = 0


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
