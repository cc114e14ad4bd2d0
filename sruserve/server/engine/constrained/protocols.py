"""The engine's interface to a constraint on a text, wherever its grammar runs."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sruserve.server.errors import ServeError

IDENTITY_BYTES = 16
MAX_MATCH_BYTES = 32_768  # at this length a text ends as if at its token limit


class TextPosition(Protocol):
    """The position of one text. Tokens since the last `commit` can be rolled back."""

    @property
    def problem(self) -> ServeError | None:
        """The error that keeps the text from continuing."""
        ...

    @property
    def consumed(self) -> bytes:
        """The bytes consumed."""
        ...

    @property
    def length(self) -> int:
        """The number of bytes consumed."""
        ...

    @property
    def uncommitted(self) -> int:
        """The number of tokens consumed since the last `commit`."""
        ...

    @property
    def ended(self) -> bool:
        """Whether no token may follow: the match is complete, or there is a `problem`."""
        ...

    @property
    def allowed_ids(self) -> NDArray[np.int64]:
        """The ids of the tokens that may follow."""
        ...

    @property
    def late(self) -> bool:
        """Whether a token was passed to `expect` and not yet to `advance`."""
        ...

    def ready(self, until: float) -> bool:
        """Whether the last request was answered; waits until `until`, by `time.monotonic`.

        Texts that are examined together take less time with the same `until`, even a past one.
        """
        ...

    def copy(self) -> "TextPosition":
        """Another text's position after the same bytes, before any request to this one."""
        ...

    def expect(self, token: int) -> int:
        """Announce the token of the next `advance`, so that all texts are examined in parallel.

        Returns the token, or the one that was announced before it.
        """
        ...

    def advance(self, token: int) -> bool:
        """Consume one of `allowed_ids`; False: it leads to a dead end and is no longer allowed."""
        ...

    def commit(self, count: int) -> None:
        """Keep the first `count` uncommitted tokens, and roll the others back."""
        ...


class TextConstraint(Protocol):
    """A constraint on a text: a pattern or schema, named by its `identity`."""

    @property
    def identity(self) -> bytes:
        """16 bytes that name the pattern or schema in a state."""
        ...

    def begin(self, consumed: bytes = b"") -> TextPosition:
        """The position after `consumed`, which must not be used before it is `ready`.

        If no match begins with `consumed`, raises `StateTampered`, or that is its `problem`.
        """
        ...
