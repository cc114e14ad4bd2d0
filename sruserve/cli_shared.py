"""Shared by all commands: one-line errors, the progress bar, names of models, standard input."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from sruserve.model.errors import printable

STANDARD = Path("-")  # standard input or output
_errors = Console(stderr=True, highlight=False)


def fail(error: Exception, code: int = 1) -> NoReturn:
    """End the command with the error in one line."""
    show_error(error)
    raise typer.Exit(code)


def show_error(error: Exception) -> None:
    """Print an error in one line."""
    text = printable(" ".join(str(error).splitlines()))
    # as a value, not as markup: a text may have tags and escapes of its own
    _errors.print(Text.assemble(("error:", "bold red"), " ", text), soft_wrap=True)


def progress_bar() -> Progress:
    """Return a progress bar that shows only on a terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=_errors,
        transient=True,
        disable=not _errors.is_terminal,
    )


def find_model(path: Path) -> Path:
    """Return a model's path, or the folder of the bundled model that the path names."""
    from sruserve.model.bundled import path_of_model

    return path_of_model(path)


@contextmanager
def reading(file: Path) -> Iterator[BinaryIO]:
    """Open a file, or the standard input, for reading; raises `OSError`."""
    if file == STANDARD:
        yield sys.stdin.buffer
        return
    with file.open("rb") as source:
        yield source
