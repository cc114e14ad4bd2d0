"""See clients leave whose connections are not read: a transport tells it only of what it reads."""

import asyncio
import select

from uvicorn.protocols.http.flow_control import FlowControl

_LOOK_SECONDS = 0.5


class Departures:
    """Ends the connections of a worker whose clients leave while reading is paused.

    Reading pauses and goes on far more often than clients leave, so a pause costs no system call.

    look_seconds: between two looks at those that are paused.
    """

    def __init__(self, look_seconds: float = _LOOK_SECONDS) -> None:
        self.look_seconds = look_seconds
        self._watched: set[asyncio.Transport] = set()
        self._looks = False

    def watch(self, transport: asyncio.Transport) -> None:
        """Abort it when its client sends no more, in a moment."""
        self._watched.add(transport)
        if not self._looks:
            self._look_later()

    def forget(self, transport: asyncio.Transport) -> None:
        """It is read again, or closed."""
        self._watched.discard(transport)

    def _look_later(self) -> None:
        self._looks = True
        asyncio.get_running_loop().call_later(self.look_seconds, self._look)

    def _look(self) -> None:
        self._looks, numbers, poll = False, dict[int, asyncio.Transport](), select.poll()
        for transport in self._watched:
            if not transport.is_closing():
                number = transport.get_extra_info("socket").fileno()
                poll.register(number, select.POLLRDHUP)
                numbers[number] = transport
        self._watched = set(numbers.values())
        for number, _ in poll.poll(0):
            numbers[number].abort()
        if self._watched:
            self._look_later()


class Flow(FlowControl):
    """Reading pauses for uvicorn, and while bytes wait to be parsed."""

    held = False

    def __init__(self, transport: asyncio.Transport, departures: Departures) -> None:
        super().__init__(transport)
        self._departures = departures

    def hold(self) -> None:
        """Do not read, whatever uvicorn wants."""
        if not self.held:
            self.held = True
            if not self.read_paused:
                self._pause()

    def release(self) -> None:
        """Read again, unless uvicorn wants a pause."""
        if self.held:
            self.held = False
            if not self.read_paused:
                self._resume()

    def pause_reading(self) -> None:
        """uvicorn wants a pause."""
        if not self.read_paused:
            self.read_paused = True
            if not self.held:
                self._pause()

    def resume_reading(self) -> None:
        """uvicorn wants no pause."""
        if self.read_paused:
            self.read_paused = False
            if not self.held:
                self._resume()

    def _pause(self) -> None:
        self._transport.pause_reading()
        self._departures.watch(self._transport)

    def _resume(self) -> None:
        self._departures.forget(self._transport)
        self._transport.resume_reading()
