"""What the engine asks of a constraint on a text, wherever its grammar is held."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sruserve.server.errors import ServeError

IDENTITY_BYTES = 16
MOST_SPELLED = 32_768  # bytes of one match; at this length a text ends as at its last token


class TextPosition(Protocol):
    """The position of one text. Tokens taken since the last `settle` can be taken back."""

    @property
    def problem(self) -> ServeError | None:
        """What keeps the text from going on."""
        ...

    @property
    def spelled(self) -> bytes:
        """The bytes taken."""
        ...

    @property
    def length(self) -> int:
        """How many bytes that are."""
        ...

    @property
    def ahead(self) -> int:
        """Tokens taken that are not settled."""
        ...

    @property
    def ended(self) -> bool:
        """Whether nothing can follow: the match is whole, or there is a `problem`."""
        ...

    @property
    def ids(self) -> NDArray[np.int64]:
        """The tokens that may come next."""
        ...

    @property
    def late(self) -> bool:
        """Whether a token is expected whose position is not known yet."""
        ...

    def ready(self, until: float = 0.0) -> bool:
        """Whether what was asked last is known; waits for it until then, by `time.monotonic`.

        Raises `StateTampered`, or what else keeps a text from beginning.
        """
        ...

    def copy(self) -> "TextPosition":
        """Another text's position behind the same bytes, while nothing was asked of this one."""
        ...

    def expect(self, token: int) -> int:
        """Say what to take next, so that texts are looked into at a time, and `take` that then.

        Returns the token, or the one that is expected already.
        """
        ...

    def take(self, token: int) -> bool:
        """Go on by one of `ids`; False: that is a dead end, and now it is none of them."""
        ...

    def settle(self, count: int) -> None:
        """Keep the first `count` of the tokens ahead, and take the others back."""
        ...


class TextConstraint(Protocol):
    """What a text has to match; `identity` is the one of its pattern or schema."""

    @property
    def identity(self) -> bytes:
        """16 bytes, so that a state can say which constraint its position is of."""
        ...

    def begin(self, spelled: bytes = b"") -> TextPosition:
        """The position behind `spelled`, of no use before it is `ready`.

        Raises `StateTampered` if no match begins so, here or when asked whether it is ready.
        """
        ...
