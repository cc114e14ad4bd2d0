"""What an output is made of, kept beside it: a run continues only with the same things."""

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict, ValidationError

from sruserve.batch.errors import ChangedError
from sruserve.batch.files import RunFiles
from sruserve.model.files import read_regular

_SECONDS = 1.0  # between two entries
_MAX_BYTES = 1 << 20


class Progress(BaseModel):
    """How far a run has got.

    made_of: what the output depends on, by name: model, dtype, options. line: a line of the input.
    digest: the SHA-256 of the input up to there.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    made_of: dict[str, str]
    line: int = 0
    digest: str = ""


class Journal:
    """The file beside an output with its `Progress`.

    clock: monotonic seconds.
    """

    def __init__(self, output: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = RunFiles.of(output)
        self.path = self._files.progress
        self._clock, self._due = clock, -math.inf

    def read(self) -> Progress | None:
        """Return what was written last; None if there is nothing. Raises `ChangedError`."""
        try:
            return Progress.model_validate_json(read_regular(self.path, _MAX_BYTES))
        except FileNotFoundError:
            return None
        except (ValidationError, OSError) as error:
            raise ChangedError(
                f"{self.path} cannot be read, so the run cannot continue: add --restart"
            ) from error

    def write(self, progress: Progress, now: bool = False) -> None:
        """Write how far a run has got, at most once a second unless `now`."""
        if not now and self._clock() < self._due:
            return
        new = self._files.new_progress
        new.unlink(missing_ok=True)
        with new.open("x") as file:  # never through a link that others have put there
            file.write(progress.model_dump_json() + "\n")
        os.replace(new, self.path)
        self._due = self._clock() + _SECONDS

    def begin(self, output: IO[bytes], made_of: Mapping[str, str], restart: bool) -> Progress:
        """Return how far an earlier run of the output got, and write that it continues.

        output: is `locked`. restart: empty it, remove what is beside it, and begin again.

        Raises `ChangedError` if the output is made of something else, or is none of a run.
        """
        if restart:
            # What the output is made of is first: without it, nothing continues the rest.
            for file in (self.path, self._files.new_progress, self._files.errors):
                file.unlink(missing_ok=True)
            output.truncate(0)  # unlinked, it would lose its lock
        before = self.read()
        if before is None:
            for file in (self._files.output, self._files.errors):
                if file.exists() and file.stat().st_size:
                    raise ChangedError(
                        f"{file} exists, and {self.path.name} is not beside it: name another "
                        "output, or add --restart to replace it"
                    )
            before = Progress(made_of=dict(made_of))
            self.write(before, now=True)
        for name in {**before.made_of, **made_of}:
            old, new = before.made_of.get(name, "nothing"), made_of.get(name, "nothing")
            if old != new:
                raise ChangedError(
                    f"{self._files.output} was begun with {name} {old}, and now it is {new}: name "
                    "another output, or add --restart to replace it"
                )
        return before
