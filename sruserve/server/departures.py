"""See clients leave whose connections are not read: a transport tells it only of what it reads."""

import asyncio
import select

from uvicorn.protocols.http.flow_control import FlowControl


class Departures:
    """Ends the connections of a worker whose clients leave while reading is paused."""

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None
        self._watched: dict[int, asyncio.Transport] = {}

    def watch(self, transport: asyncio.Transport) -> None:
        """Abort it when its client sends no more. It must be forgotten before it is closed."""
        if transport.is_closing():
            return
        if self._epoll is None:
            self._epoll = select.epoll()
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._look)
        number = _number(transport)
        if number not in self._watched:
            self._epoll.register(number, select.EPOLLRDHUP)
            self._watched[number] = transport

    def forget(self, transport: asyncio.Transport) -> None:
        """It is read again, or closed."""
        number = _number(transport)
        if self._watched.get(number) is transport:
            self._end(number)

    def _look(self) -> None:
        assert self._epoll is not None
        for number, _ in self._epoll.poll(0):
            self._end(number).abort()

    def _end(self, number: int) -> asyncio.Transport:
        assert self._epoll is not None
        self._epoll.unregister(number)
        return self._watched.pop(number)


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


def _number(transport: asyncio.Transport) -> int:
    number: int = transport.get_extra_info("socket").fileno()
    return number
