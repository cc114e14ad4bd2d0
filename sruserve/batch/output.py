"""The output of a run: whole lines in order, and where they end after an interruption.

The lines of wrong inputs go to a file of their own. Both files together have one line for each
input, written in the order of the input. So the last line of either says how far a run got.
"""

import fcntl
import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import IO, Protocol

from sruserve.batch.answers import ID_PREFIX, Answer
from sruserve.batch.errors import ChangedError
from sruserve.batch.files import RunFiles, open_to_append

_PART = 1 << 16


class Sink(Protocol):
    """Where answers go.

    wrong: lines that were wrong so far. waits: writing may wait for its reader.
    """

    wrong: int
    waits: bool

    def write(self, answers: Sequence[Answer]) -> None:
        """Write answers, in the order of their lines."""
        ...


class Output:
    """An output file and its file of errors, which exists once a line is wrong.

    line: the input's line up to which both are complete. wrong, waits: see `Sink`.

    file: what `locked` returned; it is closed with the output, or if this raises.

    Raises `ChangedError` for files that are not of a run, or that another run writes.
    """

    def __init__(self, path: Path, file: IO[bytes] | None = None) -> None:
        self.path, self.errors, *_ = RunFiles.of(path)
        with ExitStack() as opened:
            self._output = opened.enter_context(file or locked(path))
            self._errors: IO[bytes] | None = None
            if os.path.lexists(self.errors):
                self._errors = opened.enter_context(open_to_append(self.errors))
            self.line = max(_last_line(file) for file in (self._output, self._errors) if file)
            self.wrong = _lines(self._errors) if self._errors else 0
            opened.pop_all()
        self._writing, self._closed, self.waits = Lock(), False, False

    def write(self, answers: Sequence[Answer]) -> None:
        """See `Sink`. A process that is killed leaves what is before some place in their order."""
        with self._writing:
            if self._closed:  # the run is interrupted, and this is a thread that it has left
                raise ValueError("the output is closed")
            for wrong, run in groupby(answers, key=lambda each: each.wrong):
                self._write(b"".join(each.content for each in run), wrong)
            self.line = answers[-1].line

    def _write(self, content: bytes, wrong: bool) -> None:
        if not wrong:
            _write_all(self._output, content)
            return
        if self._errors is None:
            self._errors = open_to_append(self.errors)
        _write_all(self._errors, content)
        self.wrong += content.count(b"\n")

    def close(self) -> None:
        """Write both files to the disk, after what is being written."""
        with self._writing:
            self._closed = True
            for file in (self._output, self._errors):
                if file is not None:
                    os.fsync(file.fileno())
                    file.close()


class StandardOutput:
    """Writes answers to one stream, and errors to another. wrong, waits: see `Sink`.

    A terminal gets no character that it may obey, which an input could have chosen: such characters
    become escapes of JSON, so the values stay the same.
    """

    def __init__(self, output: IO[bytes], errors: IO[bytes]) -> None:
        self._output, self._errors = output, errors
        self.wrong, self.waits = 0, True

    def write(self, answers: Sequence[Answer]) -> None:
        """See `Sink`."""
        for each in answers:
            stream = self._errors if each.wrong else self._output
            stream.write(_printable(each.content) if stream.isatty() else each.content)
            self.wrong += each.wrong
        self._output.flush()
        self._errors.flush()


def _printable(lines: bytes) -> bytes:
    """Return lines of JSON in which all characters but their ends are printable."""
    text = lines.decode()
    if not text.replace("\n", "").isprintable():
        text = "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
    return text.encode()


def _write_all(file: IO[bytes], content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[file.write(view) :]


def locked(path: Path) -> IO[bytes]:
    """Open an output, or create it; no other run writes it until it is closed.

    Raises `ChangedError` if another run does.
    """
    with ExitStack() as opened:
        file = opened.enter_context(open_to_append(path))
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ChangedError(f"another run writes {file.name}: wait for its end") from error
        except OSError:  # a file system without locks
            pass
        opened.pop_all()
    return file


def _lines(file: IO[bytes]) -> int:
    file.seek(0)
    return sum(part.count(b"\n") for part in iter(lambda: file.read(_PART), b""))


def _last_line(file: IO[bytes]) -> int:
    """Cut an unfinished line off a file; returns the number of the last whole line, 0 without any.

    Raises `ChangedError` if that line is no line of a run.
    """
    end = _find_end(file, file.seek(0, os.SEEK_END))
    file.truncate(end)
    if not end:
        return 0
    begin = _find_end(file, end - 1)
    file.seek(begin)
    try:
        content = json.loads(file.read(end - begin))
        number = content["line"] if "line" in content else content["id"].removeprefix(ID_PREFIX)
        return int(number)
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise ChangedError(
            f"{file.name} ends with a line that is not of a run: name another output, or add "
            "--restart to replace it"
        ) from error


def _find_end(file: IO[bytes], before: int) -> int:
    """Return the place after the last end of a line before a place; 0 without any."""
    while before > 0:
        begin = max(0, before - _PART)
        file.seek(begin)
        at = file.read(before - begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        before = begin
    return 0
