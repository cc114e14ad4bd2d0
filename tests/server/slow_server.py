"""A server, as a program, whose end waits for others, and that is slow while a file is there.

Its steps take long then, so that a test does what has to come before their end. At its end it waits
longer than others do for those who do not take its last words: clients, logs and collectors.

The arguments are the file, and then those of `sruserve`.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_STEP_SECONDS = 0.1  # of up to 16 tokens


PATIENT_SERVER = ("-m", __name__, "/no/such/file")
"""Python's arguments for this program, which is never slow."""


def slow_server(folder: Path) -> tuple[Sequence[str], Path]:
    """Python's arguments for this program, and its file, which is there until it is unlinked."""
    file = folder / "slow"
    file.touch()
    return ("-m", __name__, str(file)), file


def main() -> None:
    """Run the command line of the server."""
    from sruserve import cli
    from sruserve.server import lifecycle, run
    from sruserve.server.engine.engine import Engine
    from sruserve.server.engine.model_runner import ModelRunner
    from sruserve.server.observation import opening

    file, step = Path(sys.argv.pop(1)), ModelRunner.step

    def slow_step(runner: ModelRunner, *arguments: Any) -> Any:
        if file.exists():
            time.sleep(_STEP_SECONDS)
        return step(runner, *arguments)

    for changed, name, value in (
        (ModelRunner, "step", slow_step),
        (Engine, "_answered_here", lambda engine, job: False),  # else the event loop is slow
        (lifecycle, "LAST_WORDS_SECONDS", 60.0),
        (lifecycle, "FORCE_SECONDS", 180.0),
        (run, "CLOSE_SECONDS", 60),
        (opening, "CLOSE_SECONDS", 60.0),
        (opening, "_LINES_SECONDS", 60.0),
    ):
        setattr(changed, name, value)
    cli.main()


if __name__ == "__main__":
    main()
