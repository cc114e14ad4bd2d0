"""The line of a user's source that is running."""

import linecache
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)


@dataclass(frozen=True, slots=True)
class Place:
    """A line of source: its file, its number from 1 and its text."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        where = f"{self.file}, line {self.line}"
        return f"{where}: {self.text}" if self.text else where


def is_own(file: str) -> bool:
    """Whether a file is neither torch's nor this package's tracer."""
    return not file.startswith((_TORCH, _HERE))


def running_line() -> Place | None:
    """Return the innermost line outside torch and this package's tracer; None without one."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_own(file):
            text = linecache.getline(file, frame.f_lineno).strip()
            return Place(file, frame.f_lineno, text[:120])
        frame = frame.f_back  # type: ignore[assignment]
    return None
