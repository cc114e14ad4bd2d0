"""A constraint whose grammar is in a process of its own, with bounds of time and memory."""

import asyncio
import json
import logging
import socket
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import BinaryIO, Self
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from sruserve.server.engine.alphabet import Alphabet
from sruserve.server.engine.constrained import IDENTITY_BYTES
from sruserve.server.engine.grammar_host import GrammarHost
from sruserve.server.engine.grammar_memory import GrammarMemory
from sruserve.server.engine.wire import (
    BEGIN,
    DROP,
    MESSAGE,
    SETTLE,
    TAKE,
    Position,
    frame,
    opened,
    receive,
    unframed,
    unpack_position,
)
from sruserve.server.errors import DeadlineExceeded, EngineFailure, InvalidRequest, ServeError

_log = logging.getLogger(__name__)

_NOWHERE = np.zeros(256, np.bool_)
# A process is bounded in its own time. These end one that gets none, or that was stopped.
_START_SECONDS = 20.0
_STALL_SECONDS = 10.0
_BEGIN_MS = 500  # of a CPU, to read the bytes of a state
_MOST_EXPECTED = 64  # replies that fit into the buffer of a socket


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one grammar may take: seconds of a CPU, bytes of memory.

    step_seconds: for one token, because everybody's step waits; what is used comes back by
        `earned_seconds` with each token.
    growth_bytes: for the tables that grow while texts follow it, and for their positions.
    """

    compile_seconds: float = 2.0
    step_seconds: float = 0.1
    earned_seconds: float = 0.003
    compile_bytes: int = 128 << 20
    growth_bytes: int = 24 << 20


class GrammarProcess:
    """The server's end of a process: the event loop starts it, then one engine's thread asks."""

    def __init__(
        self, host: GrammarHost, channel: socket.socket, memory: GrammarMemory, bounds: Bounds
    ) -> None:
        self.bounds, self._memory = bounds, memory
        self.held_bytes = self._base_bytes = 0
        self.ended = False
        self.pid = 0
        self._host, self._channel = host, channel
        self._channel.setblocking(False)
        self._replies = channel.makefile("rb")
        self._unsent: deque[bytes] = deque()
        self._expected = 0  # replies
        finalize(self, _close, self._replies, channel)
        memory.add(self)

    @property
    def fresh(self) -> bool:
        """Whether more texts may follow its grammar: its tables are not half full."""
        return not self.ended and self.held_bytes < self._base_bytes + self.bounds.growth_bytes // 2

    async def start(self) -> None:
        """Wait until the process is there; raises `EngineFailure`."""
        try:
            async with asyncio.timeout(_START_SECONDS):
                self.pid = int(await self._hear())
        except (EOFError, OSError) as error:
            self.end()
            _log.error("a process for a grammar did not start: %r", error)
            raise EngineFailure(
                "no process could be started for the regex or schema; see the server's log"
            ) from None

    async def compile(self, kind: str, given: object, alphabet: Alphabet) -> bytes:
        """The identity of a regex or schema, which the process follows from now on.

        It is killed if it fails, or if nobody waits any more.
        """
        asked = {"kind": kind, "given": given, "values": alphabet.values.hex()}
        try:
            try:
                said = frame(json.dumps(asked | asdict(self.bounds)).encode())
            except RecursionError:
                raise InvalidRequest("the schema is nested too deeply; simplify it") from None
            async with asyncio.timeout(_STALL_SECONDS):
                await asyncio.get_running_loop().sock_sendall(self._channel, said)
                verdict = opened(await self._hear())
        except BaseException as error:
            self.kill()
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(
                    "the regex or schema was not compiled in time; retry when the server is less "
                    "busy"
                ) from None
            if isinstance(error, EOFError | OSError):
                raise self._too_much() from None
            raise
        self._channel.setblocking(True)
        self._channel.settimeout(_STALL_SECONDS)
        self.held_bytes = self._base_bytes = int.from_bytes(verdict[IDENTITY_BYTES:], "little")
        return verdict[:IDENTITY_BYTES]

    def begin(self, number: int, spelled: bytes) -> Position:
        """A new text's position behind `spelled`."""
        self._unsent.append(frame(MESSAGE.pack(BEGIN, number, _BEGIN_MS) + spelled))
        return self.answer()

    def take(self, number: int, token: int) -> None:
        """Ask for a text's position behind one more token: what `answer` then returns.

        Texts may ask before others have their answers, which come in the order of the questions.
        """
        self._unsent.append(frame(MESSAGE.pack(TAKE, number, token)))
        if self._expected < _MOST_EXPECTED and not self.ended:
            with suppress(OSError):  # `answer` finds out
                self._send()
            self._expected += 1

    def settle(self, number: int, tokens: int) -> None:
        """Tell how many of the tokens ahead are kept, when something is asked next."""
        self._unsent.append(frame(MESSAGE.pack(SETTLE, number, tokens)))

    def drop(self, number: int) -> None:
        """Tell that a text is over, when something is asked next; from any thread."""
        self._unsent.append(frame(MESSAGE.pack(DROP, number, 0)))

    def end(self) -> None:
        """Let the process end when it has nothing to do; from any thread."""
        self.ended = True
        self._memory.forget(self)
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """End the process, whatever it does; on the event loop."""
        self.end()
        if self.pid:
            self._host.kill(self.pid)

    def answer(self) -> Position:
        """The next position that was asked for; raises what keeps it from being told."""
        if self.ended:
            raise self._too_much()
        try:
            self._send()
            reply = receive(self._replies)
        except (EOFError, OSError) as error:
            self.end()
            if isinstance(error, TimeoutError):
                _log.error("process %d of a grammar does not answer", self.pid)
                raise EngineFailure("the regex or schema is not answered for; retry") from None
            raise self._too_much() from None
        self._expected = max(0, self._expected - 1)
        position = unpack_position(opened(reply))
        grown = position.held_bytes > self.held_bytes
        self.held_bytes = position.held_bytes
        if grown:
            self._memory.check()
        return position

    def _send(self) -> None:
        messages = []
        while self._unsent:
            messages.append(self._unsent.popleft())
        if messages:
            self._channel.sendall(b"".join(messages))

    def _too_much(self) -> InvalidRequest:
        bounds = self.bounds
        return InvalidRequest(
            "the regex or schema cannot be followed: it takes more than "
            f"{bounds.compile_seconds:g} seconds or {bounds.compile_bytes >> 20} MiB to compile, "
            f"or {bounds.growth_bytes >> 20} MiB more to follow; simplify it"
        )

    async def _hear(self) -> bytes:
        loop, received = asyncio.get_running_loop(), bytearray()
        while (message := unframed(bytes(received))) is None:
            part = await loop.sock_recv(self._channel, 4096)
            if not part:
                raise EOFError
            received += part
        return message


def _close(replies: BinaryIO, channel: socket.socket) -> None:
    """Let go of a process, which then ends when it has nothing to do."""
    replies.close()
    channel.close()


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
        """The position behind `spelled`; raises `StateTampered` if no match begins so."""
        number = next(self._numbers)
        position = self.process.begin(number, spelled)
        return ConfinedSpelling(self, number, spelled, position)


class ConfinedSpelling:
    """The position of one text in a confined grammar; see `TextPosition`."""

    def __init__(
        self, constraint: ConfinedConstraint, number: int, spelled: bytes, position: Position
    ) -> None:
        self._process, self._alphabet = constraint.process, constraint.alphabet
        self._number = number
        self._spelled = bytearray(spelled)
        self._trail: list[NDArray[np.bool_]] = []  # the options before each new byte
        self._options = position.options
        self._asked = False
        self.problem = position.problem

    @property
    def spelled(self) -> bytes:
        """The bytes taken."""
        return bytes(self._spelled)

    @property
    def length(self) -> int:
        """How many bytes that are."""
        return len(self._spelled)

    @property
    def ahead(self) -> int:
        """Tokens taken that are not settled."""
        return len(self._trail)

    @property
    def ended(self) -> bool:
        """Whether nothing can follow: the match is whole, or there is a `problem`."""
        return not self._options.any()

    @property
    def ids(self) -> NDArray[np.int64]:
        """The tokens that may come next."""
        return self._alphabet.ids[self._options]

    def expect(self, token: int) -> None:
        """Say what `take` will be called with next, so that texts are looked into at a time."""
        if not self._asked:
            self._asked = True
            self._process.take(self._number, token)

    def take(self, token: int) -> bool:
        """Go on by one of `ids`; False: that is a dead end, and now it is none of them."""
        self.expect(token)
        self._asked = False
        try:
            position = self._process.answer()
        except ServeError as error:
            # without the frames, which hold this text and with it the process
            position = Position(True, 0, _NOWHERE, error.with_traceback(None))
        if position.taken:
            self._trail.append(self._options)
            self._spelled.append(self._alphabet.values[token])
        self._options, self.problem = position.options, position.problem
        return position.taken

    def settle(self, count: int) -> None:
        """Keep the first `count` of the tokens ahead, and take the others back."""
        if self._asked:  # and never answered: later answers would be taken for others
            self._process.end()
        back = len(self._trail) - count
        if back:
            del self._spelled[-back:]
            self._options = self._trail[count]
        if self._trail:
            self._process.settle(self._number, count)
        self._trail.clear()

    def __del__(self) -> None:
        self._process.drop(self._number)
