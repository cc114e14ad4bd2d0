"""The questions that a check may ask of a server, in any protocol.

A protocol that does not have something raises `NotApplicable` with the reason.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from sruserve.check.errors import NotApplicable
from sruserve.check.results import Result, joined
from sruserve.check.samples import Sample
from sruserve.check.transport import Transport

Ready = Callable[[], None]


class Stream(ABC):
    """An input that is sent in chunks."""

    @abstractmethod
    def send(self, chunk: Sample, last: bool) -> Result:
        """Send the next chunk. last: no other follows."""

    def close(self) -> None:  # noqa: B027
        """Leave nothing on the server, if the protocol has a way."""


class NumberedStream(Stream):
    """A stream whose steps have numbers, so that a step that is sent again runs once."""

    _next = 1

    def send(self, chunk: Sample, last: bool) -> Result:
        result = self.step(self._next, chunk, last)
        self._next += 1
        return result

    @abstractmethod
    def step(
        self, number: int, chunk: Sample, last: bool, replica: int = 0, ready: Ready | None = None
    ) -> Result:
        """Send a step by its number, which begins at 1."""


class Tokens(ABC):
    """States as values that a client keeps."""

    name: ClassVar[str] = "state tokens"

    @abstractmethod
    def step(
        self,
        state: str | None,
        chunk: Sample,
        last: bool,
        replica: int = 0,
        ready: Ready | None = None,
    ) -> tuple[Result, str]:
        """Continue a state, None at the beginning; returns the state that follows."""


class TokenStream(Stream):
    """A stream whose state the client carries from chunk to chunk."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._state: str | None = None

    def send(self, chunk: Sample, last: bool) -> Result:
        result, self._state = self._tokens.step(self._state, chunk, last)
        return result


class Server(ABC):
    """One model of one server, or of several replicas of it."""

    protocol: ClassVar[str]

    def __init__(self, replicas: Sequence[Transport], model: str) -> None:
        self.replicas, self.model = tuple(replicas), model

    @abstractmethod
    def samples(self, texts: Sequence[str]) -> tuple[Sample, ...]:
        """Inputs of different lengths for the model."""

    @abstractmethod
    def ask(self, sample: Sample, ready: Ready | None = None, replica: int = 0) -> Result:
        """The result of a whole input."""

    @abstractmethod
    def ask_in_one(self, samples: Sequence[Sample]) -> list[Result]:
        """The results of several inputs in one request."""

    def cut(self, sample: Sample, places: Sequence[float]) -> list[Sample]:
        """An input in chunks that end at these fractions of it."""
        return sample.cut(places)

    def joined(self, results: Sequence[Result], whole: Result) -> Result:
        """The result of all chunks together, in the form of the whole's."""
        del whole
        return joined(results)

    def tokens(self) -> Tokens:
        raise NotApplicable(f"{self.protocol} has no states that a client keeps")

    @abstractmethod
    def streams(self) -> dict[str, Callable[[], Stream]]:
        """All kinds of streams by name."""

    @abstractmethod
    def numbered(self) -> Callable[[], NumberedStream]:
        """Open a stream whose steps have numbers."""

    @abstractmethod
    def complete(
        self, sample: Sample, seed: int, want_events: bool = False, ready: Ready | None = None
    ) -> Result:
        """A text that is sampled with a seed, whole or as server-sent events."""
