"""What clients have seen, as lines of a file that several processes write."""

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
    """The server answered with an error: its status, and its code as far as it is known."""


class WrongAnswer(Exception):
    """The server answered, and not what it should have."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One request: when it ended (on the machine's monotonic clock), how long it took, its end."""

    at: float
    kind: str
    ms: float
    outcome: str

    @property
    def status(self) -> int:
        """Of an error that the server told; else 0."""
        found = _STATUS.match(self.outcome)
        return int(found[0]) if found else 0


class Log:
    """Writes what a process's clients see."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    async def time(self, kind: str, ask: Callable[[], Awaitable[object]]) -> bool:
        """Ask, and write down how it went; returns whether it went well."""
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


def read(file: Path) -> Iterator[Seen]:
    """What was written so far."""
    for line in file.read_text().splitlines():
        at, kind, ms, outcome = line.split("\t", 3)
        yield Seen(float(at), kind, float(ms), outcome)


def errors(seen: Iterable[Seen]) -> Counter[str]:
    """How often what went wrong, by kind of request."""
    return Counter(f"{each.kind}: {each.outcome[:80]}" for each in seen if each.outcome != OK)
