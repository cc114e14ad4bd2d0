"""Begin a run's output, or continue it, once it is sure that no other run writes it."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from sruserve.batch.journal import Journal, Progress
from sruserve.batch.output import Output, locked


def open_output(
    path: Path, made_of: Mapping[str, str], restart: bool = False
) -> tuple[Output, Journal, Progress]:
    """Open an output, its journal, and return both with how far an earlier run of it got.

    made_of, restart: see `Journal.begin`. Raises `ChangedError`; then no file was changed.
    """
    with ExitStack() as opened:
        file = opened.enter_context(locked(path))
        journal = Journal(path)
        before = journal.begin(file, made_of, restart)
        output = Output(path, file)
        opened.pop_all()
    return output, journal, before
