"""The state of one text in a constraint, byte by byte; it never enters a dead end."""

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.completion_search import (
    Guesses,
    SearchBudget,
    find_completion,
)
from sruserve.server.engine.constrained.grammar import END, allowed_bytes
from sruserve.server.engine.constrained.progress import ConstraintProgress
from sruserve.server.errors import InvalidRequest, ServeError

_MAX_SEARCH_STEPS = 1000  # in the budget of a text, about 20 ms
_EARNED_STEPS = 32  # added to the budget by every byte


class ConstraintState(ConstraintProgress):
    """The position of one text. Tokens since the last `commit` can be rolled back.

    matcher: at the position after `consumed`; the state owns it from now on.
    completion: bytes that complete the match; None: no option of the matcher is a dead end.
    guesses: for the searches for another completion.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        vocabulary: ByteVocabulary,
        consumed: bytes,
        completion: bytes | None,
        guesses: Guesses,
    ) -> None:
        super().__init__(vocabulary, consumed)
        self._matcher, self._completion, self._guesses = matcher, completion, guesses
        self._budget = SearchBudget(_MAX_SEARCH_STEPS)
        self._completions: list[bytes | None] = []  # before each uncommitted byte
        self._next_completions: dict[int, bytes] = {}  # after bytes that may follow
        self.problem: ServeError | None = None
        self.late = False
        self._options = self._find_options()

    @property
    def options(self) -> NDArray[np.bool_]:
        """The bytes that may follow, (256), bool."""
        return self._options

    def copy(self) -> "ConstraintState":
        """See `TextPosition`."""
        return ConstraintState(
            self._matcher.deep_copy(),
            self._vocabulary,
            self._first,
            self._completion,
            self._guesses,
        )

    def ready(self, until: float) -> bool:  # noqa: ARG002
        """See `TextPosition`: always true."""
        return True

    def expect(self, token: int) -> int:
        """See `TextPosition`: there is nothing to prepare."""
        return token

    def advance(self, token: int) -> bool:
        """Consume one of `allowed_ids`; False: it leads to a dead end and is no longer allowed."""
        byte = self._vocabulary.values[token]
        completion = self._completion
        if completion is not None:
            completion = self._completion_after(byte)
            if completion is None:
                self._options[byte] = False
                return False
        self._history.append(self._options)
        self._completions.append(self._completion)
        self._matcher.consume_token(byte)
        self._consumed.append(byte)
        self._completion = completion
        self._budget.left = min(_MAX_SEARCH_STEPS, self._budget.left + _EARNED_STEPS)
        self._next_completions.clear()
        self._options = self._find_options()
        return True

    def commit(self, count: int) -> None:
        """Keep the first `count` uncommitted tokens, and roll the others back."""
        surplus = len(self._history) - count
        if surplus:
            self._matcher.rollback(surplus)
            del self._consumed[-surplus:]
            self._options, self._completion = self._history[count], self._completions[count]
            self._next_completions.clear()
        self._history.clear()
        self._completions.clear()

    def _find_options(self) -> NDArray[np.bool_]:
        """Find the bytes that may follow; after a match, verify that the first is no dead end."""
        try:
            options = allowed_bytes(self._matcher) & self._vocabulary.writable
        except InvalidRequest as error:
            self.problem = error
            return np.zeros(END, np.bool_)
        if self._completion is not None and self._matcher.is_accepting():
            for byte in self._vocabulary.order:
                if options[byte]:
                    completion = self._completion_after(byte)
                    if completion is not None:
                        self._next_completions[byte] = completion
                        break
                    options[byte] = False
        return options

    def _completion_after(self, byte: int) -> bytes | None:
        """Find bytes that complete the match after `byte`; None: no success."""
        completion = self._completion
        assert completion is not None
        if completion[:1] == bytes([byte]):
            return completion[1:]
        if byte in self._next_completions:
            return self._next_completions[byte]
        matcher = self._matcher.deep_copy()
        matcher.consume_token(byte)
        # usually a text becomes longer or has another character: its end stays the same
        ends = (completion, completion[1:])
        guesses = Guesses((*ends, *self._guesses.matches), self._guesses.strings)
        try:
            return find_completion(matcher, self._vocabulary, self._budget, guesses)
        except InvalidRequest:  # the grammar is too intricate for a search
            return None
