"""The clients' observations, as lines of a file to which several processes write."""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import IO

OK, WRONG, LEFT = "ok", "wrong", "hung up"
_STATUS = re.compile(r"[1-5]\d\d")


class Refused(Exception):
    """The server replied with an error; the message is its status, and its code if known."""


class WrongAnswer(Exception):
    """The server's reply was wrong."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One request: its end on the machine's monotonic clock, its duration and its outcome."""

    at: float
    kind: str
    ms: float
    outcome: str

    @property
    def status(self) -> int:
        """HTTP status of an error reply, otherwise 0."""
        match = _STATUS.match(self.outcome)
        return int(match[0]) if match else 0


class Log:
    """Writes the observations of a process's clients."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    async def time(self, kind: str, ask: Callable[[], Awaitable[object]]) -> bool:
        """Run a request and log its outcome; returns whether it succeeded."""
        begin = monotonic()
        try:
            await ask()
            outcome = OK
        except WrongAnswer as error:
            outcome = f"{WRONG}: {error}"
        except Refused as error:
            outcome = str(error)
        except (OSError, EOFError, TimeoutError) as error:
            outcome = f"{LEFT} ({type(error).__name__})"
        now = monotonic()
        line = f"{now:.3f}\t{kind}\t{(now - begin) * 1e3:.3f}\t{outcome[:300]}"
        self._file.write(" ".join(line.splitlines()) + "\n")
        self._file.flush()
        return outcome == OK


def read(file: Path) -> Iterator[Observation]:
    """Yield the observations written so far."""
    for line in file.read_text().splitlines():
        at, kind, ms, outcome = line.split("\t", 3)
        yield Observation(float(at), kind, float(ms), outcome)


def errors(seen: Iterable[Observation]) -> Counter[str]:
    """Count the errors, by kind of request."""
    return Counter(f"{each.kind}: {each.outcome[:80]}" for each in seen if each.outcome != OK)
