"""A constraint whose grammar is in a process, and the texts that follow it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Self

import numpy as np

from sruserve.server.engine.alphabet import Alphabet
from sruserve.server.engine.confined import GrammarProcess
from sruserve.server.engine.spelled import Spelled
from sruserve.server.engine.wire import Position
from sruserve.server.errors import EngineFailure, ServeError


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ConfinedConstraint:
    """A constraint for the alphabet of one model; its process ends when nobody holds it."""

    identity: bytes
    process: GrammarProcess = field(compare=False, repr=False)
    alphabet: Alphabet = field(compare=False, repr=False)
    _numbers: "count[int]" = field(default_factory=count, compare=False, repr=False)

    @classmethod
    async def compiled(
        cls, kind: str, given: object, alphabet: Alphabet, process: GrammarProcess
    ) -> Self:
        """A `regex` or `json_schema`; raises `InvalidRequest`, or what `Constraint` raises."""
        return cls(await process.compile(kind, given, alphabet), process, alphabet)

    def begin(self, spelled: bytes = b"") -> "ConfinedSpelling":
        """Ask for the position behind `spelled`."""
        return ConfinedSpelling(self.process, self.alphabet, self._numbers, spelled)


class ConfinedSpelling(Spelled):
    """The position of one text in a confined grammar; see `TextPosition`.

    numbers: of the process's texts. like: the number of one that begins as this one does.
    """

    def __init__(
        self,
        process: GrammarProcess,
        alphabet: Alphabet,
        numbers: Iterator[int],
        spelled: bytes,
        like: int | None = None,
    ) -> None:
        super().__init__(alphabet, spelled)
        self._process, self._numbers = process, numbers
        self._number = next(numbers)
        self._begun = False
        self._asked: int | None = None
        self._kept = 0  # tokens of which the process is not told that they are
        self.problem: ServeError | None = None
        if like is None:
            process.begin(self._number, spelled)
        else:
            process.copy(self._number, like)

    @property
    def late(self) -> bool:
        """Whether a token is expected whose position is not known yet."""
        return self._asked is not None

    def copy(self) -> "ConfinedSpelling":
        """See `TextPosition`."""
        given = self._process, self._alphabet, self._numbers
        return ConfinedSpelling(*given, self._first, self._number)

    def ready(self, until: float = 0.0) -> bool:
        """Whether what was asked last is known; waits for it until then, by `time.monotonic`."""
        if self._begun and self._asked is None:
            return True
        if not self._process.answered(self._number, until):
            return False
        if not self._begun:
            self._begun = True
            position = self._process.answer(self._number)
            self._options, self.problem = position.options, position.problem
        return True

    def expect(self, token: int) -> int:
        """Say what to take next; returns that, or the token that is expected already."""
        if self._asked is None:
            self._asked = token
            self._process.take(self._number, token)
        return self._asked

    def take(self, token: int) -> bool:
        """Go on by one of `ids`; False: that is a dead end, and now it is none of them."""
        token = self.expect(token)
        self.ready(math.inf)
        self._asked = None
        try:
            position = self._process.answer(self._number)
        except ServeError as error:
            # without the frames, which hold this text and with it the process
            nowhere = np.zeros(256, np.bool_)
            position = Position(True, 0, nowhere, error.with_traceback(None))
        if position.taken:
            self._trail.append(self._options)
            self._spelled.append(self._alphabet.values[token])
        self._options, self.problem = position.options, position.problem
        return position.taken

    def settle(self, count: int) -> None:
        """Keep the first `count` of the tokens ahead, and take the others back."""
        back = len(self._trail) - count
        if back:
            del self._spelled[-back:]
            self._options = self._trail[count]
        if self._asked is not None:  # the process would take that one back
            self._kept += count
            if back:
                self._asked, self._options = None, np.zeros(256, np.bool_)
                self.problem = EngineFailure("the text cannot be taken back; retry")
        elif self._trail:
            self._process.settle(self._number, self._kept + count)
            self._kept = 0
        self._trail.clear()

    def __del__(self) -> None:
        self._process.drop(self._number)
