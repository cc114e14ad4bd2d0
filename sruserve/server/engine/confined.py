"""The server's end of a process that follows one grammar, with bounds of time and memory."""

import asyncio
import json
import logging
import select
import socket
from collections import deque
from collections.abc import Hashable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from time import monotonic
from weakref import finalize

from sruserve.server.engine.alphabet import Alphabet
from sruserve.server.engine.constrained import IDENTITY_BYTES
from sruserve.server.engine.grammar_host import START_SECONDS, GrammarHost
from sruserve.server.engine.grammar_memory import GrammarMemory
from sruserve.server.engine.wire import (
    BEGIN,
    COPY,
    DROP,
    MESSAGE,
    SETTLE,
    TAKE,
    Position,
    frame,
    next_frame,
    opened,
    unpack_position,
)
from sruserve.server.errors import (
    DeadlineExceeded,
    EngineFailure,
    InvalidRequest,
    NoProcess,
    ServeError,
)

_log = logging.getLogger(__name__)

# A process is bounded in its own time. This ends one that gets none, or that was stopped.
_STALL_SECONDS = 10.0
_BEGIN_MS = 500  # of a CPU, to read the bytes of a state


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
    """The server's end of a process: the event loop starts it, then one engine's thread asks.

    owner: whose part of the memory it takes.
    """

    def __init__(
        self,
        host: GrammarHost,
        channel: socket.socket,
        memory: GrammarMemory,
        bounds: Bounds,
        owner: Hashable = None,
    ) -> None:
        self.bounds, self._memory = bounds, memory
        self.owner = owner
        self.held_bytes = self._base_bytes = 0
        self.ended = False
        self.pid = 0
        self._host, self._channel = host, channel
        self._channel.setblocking(False)
        self._reason: ServeError | None = None
        self._unsent: deque[bytes] = deque()
        self._sending, self._received = bytearray(), bytearray()
        self._open: set[int] = set()  # texts that are not over
        self._asked: deque[int] = deque()  # the texts of the answers that are to come
        self._answers: dict[int, bytes] = {}
        self._heard = 0.0
        finalize(self, channel.close)
        memory.add(self)

    @property
    def fresh(self) -> bool:
        """Whether more texts may follow its grammar: it runs, and its tables are not half full."""
        most = self._base_bytes + self.bounds.growth_bytes // 2
        return self.held_bytes < most and self.runs

    @property
    def runs(self) -> bool:
        """Whether the process has not ended: it may have been killed between texts."""
        return bool(running([self]))

    def fileno(self) -> int:
        """Of the socket that ends with the process."""
        return self._channel.fileno()

    async def start(self) -> None:
        """Wait until the process is there; raises `NoProcess`.

        Its beginning is heard in any case, so that the host knows of it.
        """
        beginning = asyncio.create_task(self._begin_to_hear())
        try:
            error = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            beginning.add_done_callback(lambda _: self.kill())
            raise
        if error is not None:
            self.end()
            _log.error("a process for a grammar did not start: %r", error)
            raise NoProcess

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
                raise self._why_ended() from None
            raise
        self.held_bytes = self._base_bytes = int.from_bytes(verdict[IDENTITY_BYTES:], "little")
        self._memory.check()
        return verdict[:IDENTITY_BYTES]

    def begin(self, number: int, spelled: bytes) -> None:
        """Ask for a new text's position behind `spelled`."""
        self._open.add(number)
        self._ask(number, MESSAGE.pack(BEGIN, number, _BEGIN_MS) + spelled)

    def copy(self, number: int, like: int) -> None:
        """Ask for a new text's position, which is that of another one of which nothing is asked."""
        self._open.add(number)
        self._ask(number, MESSAGE.pack(COPY, number, _BEGIN_MS) + like.to_bytes(8, "little"))

    def take(self, number: int, token: int) -> None:
        """Ask for a text's position behind one more token."""
        self._ask(number, MESSAGE.pack(TAKE, number, token))

    def answered(self, number: int, until: float = 0.0) -> bool:
        """Whether a text's position is known, or never will be; waits for it until then."""
        while number not in self._answers and not self.ended:
            left = max(0.0, until - monotonic())
            try:
                if not self._exchange(min(left, 1.0)):
                    if not left:
                        return False
                    continue
            except (EOFError, OSError):
                self.end()
        return True

    def answer(self, number: int) -> Position:
        """A text's position that is `answered`; raises what keeps it from being known."""
        reply = self._answers.pop(number, None)
        if reply is None:
            raise self._why_ended()
        position = unpack_position(opened(reply))
        grown = position.held_bytes > self.held_bytes
        self.held_bytes = position.held_bytes
        if grown:
            self._memory.check()
        return position

    def settle(self, number: int, tokens: int) -> None:
        """Tell how many of the tokens ahead are kept, when something is asked next."""
        self._unsent.append(frame(MESSAGE.pack(SETTLE, number, tokens)))

    def drop(self, number: int) -> None:
        """Tell that a text is over, when something is asked next; from any thread."""
        self._open.discard(number)
        self._answers.pop(number, None)
        self._unsent.append(frame(MESSAGE.pack(DROP, number, 0)))

    def end(self, reason: ServeError | None = None) -> None:
        """Let the process end when it has nothing to do; from any thread.

        reason: what its texts are told; None: that it took too much.
        """
        if not self.ended:
            self._reason = reason
        self.ended = True
        self._memory.forget(self)
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """End the process, whatever it does; on the event loop."""
        self.end()
        if self.pid:
            self._host.kill(self.pid)

    def _ask(self, number: int, said: bytes) -> None:
        """Send a question as far as that is possible at once; answers come in the same order."""
        if not self._asked:
            self._heard = monotonic()
        self._asked.append(number)
        self._unsent.append(frame(said))
        if not self.ended:
            with suppress(OSError):  # `answered` finds out
                self._send()

    def _send(self) -> None:
        while self._unsent:
            self._sending += self._unsent.popleft()
        if self._sending:
            with suppress(BlockingIOError):
                del self._sending[: self._channel.send(self._sending)]

    def _exchange(self, seconds: float) -> bool:
        """Send and receive what can be; whether anything could, after so long a wait."""
        self._send()
        poll = select.poll()
        poll.register(self._channel, select.POLLIN | (select.POLLOUT if self._sending else 0))
        ready = poll.poll(seconds * 1000)
        if not ready:
            if monotonic() - self._heard > _STALL_SECONDS:
                _log.error("process %d of a grammar does not answer", self.pid)
                self.end(EngineFailure("the regex or schema is not answered for; retry"))
            return False
        if ready[0][1] & ~select.POLLOUT:
            self._receive()
        return True

    def _receive(self) -> None:
        part = self._channel.recv(1 << 16)
        if not part:
            raise EOFError
        self._heard = monotonic()
        self._received += part
        while (reply := next_frame(self._received)) is not None:
            number = self._asked.popleft()
            if number in self._open:
                self._answers[number] = reply

    def _why_ended(self) -> ServeError:
        if self._reason is not None:
            return type(self._reason)(self._reason.message)
        bounds = self.bounds
        return InvalidRequest(
            "the regex or schema cannot be followed: it takes more than "
            f"{bounds.compile_seconds:g} seconds or {bounds.compile_bytes >> 20} MiB to compile, "
            f"or {bounds.growth_bytes >> 20} MiB more to follow; simplify it"
        )

    async def _begin_to_hear(self) -> Exception | None:
        """Hear which process it is, or why there is none."""
        try:
            async with asyncio.timeout(START_SECONDS):
                self.pid = int(await self._hear())
        except (EOFError, OSError) as error:
            return error
        self._host.started()
        return None

    async def _hear(self) -> bytes:
        loop, received = asyncio.get_running_loop(), bytearray()
        while (message := next_frame(received)) is None:
            part = await loop.sock_recv(self._channel, 4096)
            if not part:
                raise EOFError
            received += part
        return message


def running(processes: Iterable[GrammarProcess]) -> set[GrammarProcess]:
    """Those of some processes that have not ended, in one look at all of them.

    Each look gives the interpreter away, and whoever has it then keeps it for a while.
    """
    alive = {process.fileno(): process for process in processes if not process.ended}
    poll = select.poll()
    for number in alive:
        poll.register(number, select.POLLRDHUP)
    for number, _ in poll.poll(0):
        del alive[number]
    return set(alive.values())
