"""A client that speaks HTTP/2 frame by frame, to do what no gRPC library does."""

import socket
import struct
import time
from collections.abc import Callable
from typing import Self

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _WINDOW = 0, 1, 3, 4, 6, 8
_END, _END_HEADERS, _ACK = 1, 4, 1
MAX_CONCURRENT_STREAMS, _INITIAL_WINDOW = 3, 4  # settings
_WINDOW_BYTES, _FRAME_BYTES = 65_535, 16_384


class RawClient:
    """One connection.

    window: how many bytes of a reply it takes for each call. address: where it comes from.
    ended: how calls ended: the bytes of their last headers, or b"" if they were reset.
    settings: what the server has set.
    closed: the server has hung up.
    """

    def __init__(self, port: int, window: int = _WINDOW_BYTES, address: str = "127.0.0.1") -> None:
        self.ended: dict[int, bytes] = {}
        self.settings: dict[int, int] = {}
        self.closed = False
        server = ("127.0.0.1", port)
        self._socket = socket.create_connection(server, timeout=60, source_address=(address, 0))
        self._windows = {0: _WINDOW_BYTES}
        self._next, self._initial, self._read = 1, _WINDOW_BYTES, b""
        hello = _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW, window))
        try:
            self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + hello)
            self.until(lambda: bool(self.settings))
        except OSError:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, method: str, key: str | None = None, **more: str) -> int:
        """Begin a call, without a message."""
        headers = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "a"}
        headers |= {"te": "trailers", "content-type": "application/grpc"}
        headers |= {"authorization": f"Bearer {key}"} if key else {}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        number, self._next = self._next, self._next + 2
        self._windows[number] = self._initial
        block = b"".join(_literal(name, value) for name, value in headers.items())
        self._socket.sendall(_frame(_HEADERS, _END_HEADERS, number, block))
        return number

    def send(self, call: int, data: bytes, end: bool = False) -> int:
        """Send as much of `data` as the server takes now; tells how much."""
        sent = 0
        while sent < len(data):
            room = min(self._windows[0], self._windows[call], _FRAME_BYTES)
            piece = data[sent : sent + room]
            if room <= 0 or self.closed or call in self.ended:
                break
            last = end and sent + len(piece) == len(data)
            self._socket.sendall(_frame(_DATA, _END if last else 0, call, piece))
            sent += len(piece)
            self._windows[0] -= len(piece)
            self._windows[call] -= len(piece)
        return sent

    def open_window(self, call: int) -> None:
        """Take what a call has to say."""
        self._socket.sendall(_frame(_WINDOW, 0, call, struct.pack(">I", _WINDOW_BYTES)))

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Read what the server sends until a condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it never became true"
            if self.closed:
                raise ConnectionError("the server has hung up")
            self.read(0.05)

    def read(self, seconds: float) -> None:
        """Read what the server sends within a time."""
        self._socket.settimeout(seconds)
        try:
            data = self._socket.recv(1 << 20)
            self.closed = self.closed or not data
            self._read += data
        except TimeoutError:
            return
        except ConnectionError:
            self.closed = True
        finally:
            self._socket.settimeout(60)
        while len(self._read) >= 9:
            size = int.from_bytes(self._read[:3], "big")
            if len(self._read) < 9 + size:
                return
            kind, flags, call = struct.unpack(">BBI", self._read[3:9])
            payload, self._read = self._read[9 : 9 + size], self._read[9 + size :]
            self._take(kind, flags, call, payload)

    def _take(self, kind: int, flags: int, call: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[at : at + 6])
                self.settings[name] = value
                if name == _INITIAL_WINDOW:
                    for each in set(self._windows) - {0}:
                        self._windows[each] += value - self._initial
                    self._initial = value
            self._socket.sendall(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._socket.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW:
            self._windows[call] = self._windows.get(call, 0) + int.from_bytes(payload, "big")
        elif kind == _HEADERS and flags & _END:
            self.ended[call] = payload
        elif kind == _RESET:
            self.ended.setdefault(call, b"")


def unfinished(size: int) -> bytes:
    """A message of `size` bytes, as it travels, without its last byte."""
    return b"\0" + struct.pack(">I", size) + bytes(size - 1)


def message(data: bytes) -> bytes:
    """A message as it travels."""
    return b"\0" + struct.pack(">I", len(data)) + data


def _frame(kind: int, flags: int, call: int, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data))[1:] + struct.pack(">BBI", kind, flags, call) + data


def _literal(name: str, value: str) -> bytes:
    """A header that no table knows, each character a byte; both are short."""
    return b"\0" + b"".join(bytes([len(each)]) + each.encode("latin-1") for each in (name, value))
