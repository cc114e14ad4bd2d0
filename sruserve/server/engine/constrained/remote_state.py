"""A constraint whose grammar runs in a process, and the positions of its texts."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Self

import numpy as np

from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.process_client import GrammarProcess
from sruserve.server.engine.constrained.progress import ConstraintProgress
from sruserve.server.engine.constrained.wire import Position
from sruserve.server.errors import EngineFailure, ServeError


@dataclass(frozen=True, slots=True, weakref_slot=True)
class RemoteConstraint:
    """A constraint for the vocabulary of one model. Its process ends with the last reference."""

    identity: bytes
    process: GrammarProcess = field(compare=False, repr=False)
    vocabulary: ByteVocabulary = field(compare=False, repr=False)
    _numbers: "count[int]" = field(default_factory=count, compare=False, repr=False)

    @classmethod
    async def compile(
        cls, kind: str, source: object, vocabulary: ByteVocabulary, process: GrammarProcess
    ) -> Self:
        """Compile a `regex` or `json_schema`; raises the errors of `GrammarProcess.compile`."""
        return cls(await process.compile(kind, source, vocabulary), process, vocabulary)

    def begin(self, consumed: bytes = b"") -> "RemoteConstraintState":
        """Request the position after `consumed`."""
        return RemoteConstraintState(self.process, self.vocabulary, self._numbers, consumed)


class RemoteConstraintState(ConstraintProgress):
    """The position of one text in a grammar that runs in a process; see `TextPosition`.

    numbers: the numbers of the process's next texts. source: the number of the text to copy, or
        None to begin a new one.
    """

    def __init__(
        self,
        process: GrammarProcess,
        vocabulary: ByteVocabulary,
        numbers: Iterator[int],
        consumed: bytes,
        source: int | None = None,
    ) -> None:
        super().__init__(vocabulary, consumed)
        self._process, self._numbers = process, numbers
        self._number = next(numbers)
        self._begun = False
        self._expected: int | None = None
        self._unsent_commits = 0  # committed tokens of which the process does not know yet
        self._commit: int | None = None  # the commit to send with the next token
        self.problem: ServeError | None = None
        if source is None:
            process.begin(self._number, consumed)
        else:
            process.copy(self._number, source, consumed)

    @property
    def late(self) -> bool:
        """Whether a token was passed to `expect` and not yet to `advance`."""
        return self._expected is not None

    def copy(self) -> "RemoteConstraintState":
        """See `TextPosition`."""
        return RemoteConstraintState(
            self._process, self._vocabulary, self._numbers, self._first, self._number
        )

    def ready(self, until: float) -> bool:
        """See `TextPosition`."""
        if self._begun and self._expected is None:
            return True
        if not self._process.answered(self._number, until):
            return False
        if not self._begun:
            self._begun = True
            position = self._answer()
            self._options, self.problem = position.options, position.problem
        return True

    def expect(self, token: int) -> int:
        """Request the position after a token; returns it, or the one already expected."""
        if self._expected is None:
            self._expected = token
            self._process.advance(self._number, token, self._commit)
            self._commit = None
        return self._expected

    def advance(self, token: int) -> bool:
        """Consume one of `allowed_ids`; False: it leads to a dead end and is no longer allowed."""
        token = self.expect(token)
        self.ready(math.inf)
        self._expected = None
        position = self._answer()
        if position.accepted:
            self._history.append(self._options)
            self._consumed.append(self._vocabulary.values[token])
        self._options, self.problem = position.options, position.problem
        return position.accepted

    def commit(self, count: int) -> None:
        """Keep the first `count` uncommitted tokens, and roll the others back."""
        surplus = len(self._history) - count
        if surplus:
            del self._consumed[-surplus:]
            self._options = self._history[count]
        if self._expected is not None:  # the process would also roll back the expected token
            self._unsent_commits += count
            if surplus:
                self._expected, self._options = None, np.zeros(256, np.bool_)
                self.problem = EngineFailure("the text cannot be rolled back; retry")
        elif self._history:
            self._commit, self._unsent_commits = self._unsent_commits + count, 0
        self._history.clear()

    def _answer(self) -> Position:
        """The position that has arrived; an error that arrived instead is its `problem`."""
        try:
            return self._process.answer(self._number)
        except ServeError as error:
            # a traceback's frames would keep this text alive, and with it the process
            return Position(True, 0, np.zeros(256, np.bool_), error.with_traceback(None))

    def __del__(self) -> None:
        self._process.drop(self._number)
