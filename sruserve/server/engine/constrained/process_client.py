"""The server's end of a process that follows one grammar, with limits of time and memory."""

import asyncio
import json
import logging
import math
import select
import socket
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from time import monotonic
from weakref import finalize

from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.memory_budget import GrammarMemory
from sruserve.server.engine.constrained.process_host import START_SECONDS, GrammarHost
from sruserve.server.engine.constrained.protocols import IDENTITY_BYTES
from sruserve.server.engine.constrained.wire import (
    ADVANCE,
    BEGIN,
    COMMIT,
    COPY,
    DROP,
    MESSAGE,
    Position,
    frame,
    next_frame,
    unpack_position,
    unpack_reply,
)
from sruserve.server.errors import (
    DeadlineExceeded,
    EngineFailure,
    InvalidRequest,
    NoProcess,
    ServeError,
)

_log = logging.getLogger(__name__)

# The kernel limits the CPU time of a process. This ends one that gets none, or that was stopped.
STALL_SECONDS = 10.0
_BEGIN_MS = 500  # of CPU time, to replay the bytes of a state


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one grammar: seconds of CPU time, bytes of memory.

    step_seconds: for one token, because the whole step waits for it. Each token restores up to
        `earned_seconds` of it.
    growth_bytes: for the tables that grow while texts follow the grammar, and their positions.
    """

    compile_seconds: float = 2.0
    step_seconds: float = 0.1
    earned_seconds: float = 0.003
    compile_bytes: int = 128 << 20
    growth_bytes: int = 24 << 20


@dataclass(frozen=True, slots=True)
class _Beginning:
    """The request for a new text: after `consumed`, or at the same position as text `source`."""

    consumed: bytes
    source: int | None


class GrammarProcess:
    """The server's end of a process: the event loop starts it, then one engine's thread uses it.

    owner: the owner whose share of the memory it uses.
    stall_seconds: after which a process that does not answer ends.
    start_seconds: to start it, and first the helper if that does not run.
    """

    def __init__(
        self,
        host: GrammarHost,
        channel: socket.socket,
        memory: GrammarMemory,
        bounds: Bounds,
        owner: Hashable = None,
        stall_seconds: float = STALL_SECONDS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self.bounds, self._memory = bounds, memory
        self.owner, self.stall_seconds, self._start_seconds = owner, stall_seconds, start_seconds
        self.used_bytes = self._base_bytes = 0
        self.ended = False
        self.pid = 0
        self._host, self._channel = host, channel
        self._channel.setblocking(False)
        self._reason: ServeError | None = None
        # One request per text, so that `drop` removes it. Other threads drop texts at any time;
        # single operations of these collections are atomic.
        self._unsent: OrderedDict[int, _Beginning | bytes] = OrderedDict()
        self._unsent_drops: deque[int] = deque()
        self._sending, self._received = bytearray(), bytearray()
        self._active: set[int] = set()  # the texts that have not been dropped
        self._unanswered: deque[int] = deque()  # the texts of the requests, oldest first
        self._answers: dict[int, bytes] = {}
        self._last_heard = 0.0  # time of the last bytes received, or of the first request
        self._nothing_at = -math.inf  # time of the last poll that found nothing to receive
        finalize(self, channel.close)
        memory.add(self)

    @property
    def fresh(self) -> bool:
        """Whether more texts may follow its grammar: it runs, and its tables are not half full."""
        max_bytes = self._base_bytes + self.bounds.growth_bytes // 2
        return self.used_bytes < max_bytes and self.runs

    @property
    def runs(self) -> bool:
        """Whether the process has not ended; it may have been killed between texts."""
        return bool(running([self]))

    def fileno(self) -> int:
        """The file descriptor of the socket, whose other end closes with the process."""
        return self._channel.fileno()

    async def start(self) -> None:
        """Wait until the process has started; raises `NoProcess`.

        A cancelled caller leaves the wait running, so that the host learns of the start.
        """
        starting = asyncio.create_task(self._receive_pid())
        try:
            error = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(lambda _: self.kill())
            raise
        if error is not None:
            self.end()
            _log.error("a grammar process did not start: %r", error)
            raise NoProcess

    async def compile(self, kind: str, source: object, vocabulary: ByteVocabulary) -> bytes:
        """Compile a regex or schema, which the process then follows; returns its identity.

        An error or a cancelled caller kills the process. Raises `DeadlineExceeded`, and the errors
        of `Constraint`.
        """
        request = {"kind": kind, "source": source, "values": vocabulary.values.hex()}
        try:
            try:
                message = frame(json.dumps(request | asdict(self.bounds)).encode())
            except RecursionError:
                raise InvalidRequest("the schema is nested too deeply; simplify it") from None
            async with asyncio.timeout(self.stall_seconds):
                await asyncio.get_running_loop().sock_sendall(self._channel, message)
                reply = unpack_reply(await self._receive_message())
        except BaseException as error:
            self.kill()
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(
                    "the regex or schema was not compiled in time; retry when the server is less "
                    "busy"
                ) from None
            if isinstance(error, EOFError | OSError):
                raise self._end_error() from None
            raise
        self.used_bytes = self._base_bytes = int.from_bytes(reply[IDENTITY_BYTES:], "little")
        self._memory.check()
        return reply[:IDENTITY_BYTES]

    def begin(self, number: int, consumed: bytes) -> None:
        """Request the position of a new text after `consumed`."""
        self._active.add(number)
        self._request(number, _Beginning(consumed, None))

    def copy(self, number: int, source: int, consumed: bytes) -> None:
        """Request a new text like `source`, a text after `consumed` that has not advanced."""
        self._active.add(number)
        self._request(number, _Beginning(consumed, source))

    def advance(self, number: int, token: int, commit: int | None = None) -> None:
        """Request a text's position after one more token.

        commit: keep this many uncommitted tokens only, before the token; None: keep all.
        """
        message = frame(MESSAGE.pack(ADVANCE, number, token))
        if commit is not None:
            message = frame(MESSAGE.pack(COMMIT, number, commit)) + message
        self._request(number, message)

    def answered(self, number: int, until: float) -> bool:
        """Whether a text's position has arrived, or never will; waits for it until `until`.

        Texts with the same `until` take one poll together: once it has passed and nothing had
        arrived, the others find only what was received.
        """
        while number not in self._answers and not self.ended:
            if until <= self._nothing_at:
                return False
            try:
                self._exchange(min(max(0.0, until - monotonic()), 1.0))
            except (EOFError, OSError):
                self.end()
        return True

    def answer(self, number: int) -> Position:
        """The position of a text that is `answered`; raises the error that arrived instead."""
        reply = self._answers.pop(number, None)
        if reply is None:
            raise self._end_error()
        position = unpack_position(unpack_reply(reply))
        grown = position.used_bytes > self.used_bytes
        self.used_bytes = position.used_bytes
        if grown:
            self._memory.check()
        return position

    def drop(self, number: int) -> None:
        """Forget a text, and its request if it is unsent. From any thread."""
        self._active.discard(number)
        self._answers.pop(number, None)
        if not isinstance(self._unsent.pop(number, None), _Beginning):
            self._unsent_drops.append(number)  # sent with the next request

    def end(self, reason: ServeError | None = None) -> None:
        """Close the channel, so that the process ends when it is idle; from any thread.

        reason: the error of its texts; None: that the grammar exceeds its limits.
        """
        if not self.ended:
            self._reason = reason
        self.ended = True
        self._memory.forget(self)
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """End the process at once, even a busy one; on the event loop."""
        self.end()
        if self.pid:
            self._host.kill(self.pid)

    def _request(self, number: int, request: _Beginning | bytes) -> None:
        """Queue a text's request, and send as far as the socket allows."""
        if not (self._unanswered or self._unsent):
            self._last_heard = monotonic()
        self._unsent[number] = request
        if not self.ended:
            with suppress(OSError):  # `answered` meets the error again
                self._send()

    def _send(self) -> None:
        """Send requests as far as the socket allows; `drop` can remove those that are left."""
        with suppress(BlockingIOError):
            while self._sending or self._pack_next():
                del self._sending[: self._channel.send(self._sending)]

    def _pack_next(self) -> bool:
        """Pack all drops and the next request for sending; False: there are none."""
        # First the drops: one that another thread adds now may be of the text packed next.
        while self._unsent_drops:
            self._sending += frame(MESSAGE.pack(DROP, self._unsent_drops.popleft(), 0))
        try:
            number, request = self._unsent.popitem(last=False)
        except KeyError:
            return bool(self._sending)
        if isinstance(request, _Beginning):
            request = frame(self._beginning_message(number, request))
        self._sending += request
        self._unanswered.append(number)  # the answers arrive in the same order
        return True

    def _beginning_message(self, number: int, beginning: _Beginning) -> bytes:
        source = beginning.source
        if source is None or source not in self._active:
            return MESSAGE.pack(BEGIN, number, _BEGIN_MS) + beginning.consumed
        return MESSAGE.pack(COPY, number, _BEGIN_MS) + source.to_bytes(8, "little")

    def _exchange(self, seconds: float) -> None:
        """Send and receive, once the socket is ready; waits at most `seconds` for it."""
        self._send()
        poll = select.poll()
        poll.register(self._channel, select.POLLIN | (select.POLLOUT if self._sending else 0))
        ready = poll.poll(seconds * 1000)
        if not ready:
            self._nothing_at = monotonic()
            if self._nothing_at - self._last_heard > self.stall_seconds:
                _log.error("grammar process %d does not answer", self.pid)
                self.end(EngineFailure("the regex or schema's process does not answer; retry"))
        elif ready[0][1] & ~select.POLLOUT:
            self._receive()

    def _receive(self) -> None:
        part = self._channel.recv(1 << 16)
        if not part:
            raise EOFError
        self._last_heard = monotonic()
        self._received += part
        while (reply := next_frame(self._received)) is not None:
            number = self._unanswered.popleft()
            if number in self._active:
                self._answers[number] = reply

    def _end_error(self) -> ServeError:
        if self._reason is not None:
            return type(self._reason)(self._reason.message)
        bounds = self.bounds
        return InvalidRequest(
            "the regex or schema cannot be followed: it takes more than "
            f"{bounds.compile_seconds:g} seconds or {bounds.compile_bytes >> 20} MiB to compile, "
            f"or {bounds.growth_bytes >> 20} MiB more to follow; simplify it"
        )

    async def _receive_pid(self) -> Exception | None:
        """Receive the pid of the process; returns the error if it does not start."""
        try:
            async with asyncio.timeout(self._start_seconds):
                self.pid = int(await self._receive_message())
        except (EOFError, OSError) as error:
            return error
        self._host.started()
        return None

    async def _receive_message(self) -> bytes:
        loop, received = asyncio.get_running_loop(), bytearray()
        while (message := next_frame(received)) is None:
            part = await loop.sock_recv(self._channel, 4096)
            if not part:
                raise EOFError
            received += part
        return message


def running(processes: Iterable[GrammarProcess]) -> set[GrammarProcess]:
    """The processes that have not ended, with one poll for all of them.

    Each poll releases the interpreter's lock, and the thread that takes it keeps it for a while.
    """
    alive = {process.fileno(): process for process in processes if not process.ended}
    poll = select.poll()
    for fd in alive:
        poll.register(fd, select.POLLRDHUP)
    for fd, _ in poll.poll(0):
        del alive[fd]
    return set(alive.values())
