"""Connections to one server, each with a deadline; all of them can be closed at once."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection

from sruserve.check.address import Address
from sruserve.check.errors import CheckError, NoAnswer, Unreachable

_PIECE = 1 << 16
_END_OF_EVENTS = b"data: [DONE]"

Track = Callable[[socket.socket], None]


class Connections:
    """All connections that threads have open to a server.

    tls: for https; None: the authorities of the system.
    """

    def __init__(
        self, address: Address, timeout_seconds: float, tls: ssl.SSLContext | None = None
    ) -> None:
        self._address, self._seconds = address, timeout_seconds
        self._tls = tls
        if tls is None and address.scheme == "https":
            self._tls = ssl.create_default_context()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.closed = threading.Event()

    def close(self) -> None:
        """End all exchanges, and those that begin later."""
        self.closed.set()
        with self._lock:
            for connection in self._open:
                _shut(connection)

    @contextmanager
    def exchange(self, request: str) -> Iterator[HTTPConnection]:
        """A new connection, for one request and its reply before the deadline.

        Everything that goes wrong in the block raises a `CheckError`. request: for messages.
        """
        with self._deadline(request) as track, _failures(request):
            connection = self._connect(track)
            try:
                yield connection
            finally:
                connection.close()

    def _connect(self, track: Track) -> HTTPConnection:
        host, port = self._address.host, self._address.port
        try:
            plain = socket.create_connection((host, port), self._seconds)
        except OSError as error:
            raise Unreachable(
                f"cannot connect to {self._address}: {error.strerror or error}; check the address, "
                "and that the server runs"
            ) from None
        if self._address.scheme == "http" or self._tls is None:
            track(plain)
            connection = HTTPConnection(host, port)
            connection.sock = plain
            return connection
        secure = HTTPSConnection(host, port, context=self._tls)
        secure.sock = self._encrypted(plain, self._tls, track)
        return secure

    def _encrypted(
        self, plain: socket.socket, context: ssl.SSLContext, track: Track
    ) -> ssl.SSLSocket:
        host = self._address.host
        encrypted = context.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
        try:
            track(encrypted)
            encrypted.do_handshake()
        except ssl.SSLCertVerificationError as error:
            encrypted.close()
            raise Unreachable(
                f"the certificate of {self._address} is not trusted: {error.verify_message}; name "
                "its authority with --ca-file"
            ) from None
        except OSError as error:
            encrypted.close()
            reason = getattr(error, "reason", None) or error
            raise Unreachable(
                f"no TLS with {self._address}: {reason}; use http:// if the server has no TLS"
            ) from None
        return encrypted

    @contextmanager
    def _deadline(self, request: str) -> Iterator[Track]:
        """Shut the connection that the block tracks once its time is over.

        A timeout of a socket alone would begin again with each byte that arrives.
        """
        tracked: list[socket.socket] = []
        expired = threading.Event()

        def track(connection: socket.socket) -> None:
            with self._lock:
                tracked.append(connection)
                self._open.add(connection)
                if self.closed.is_set() or expired.is_set():
                    _shut(connection)

        def expire() -> None:
            expired.set()
            with self._lock:
                for connection in tracked:
                    _shut(connection)

        timer = threading.Timer(self._seconds, expire)
        timer.daemon = True
        timer.start()
        late = NoAnswer(
            f"no complete reply to {request} within {self._seconds:g} s; raise --timeout if the "
            "server needs longer"
        )
        try:
            yield track
        except CheckError as error:
            if expired.is_set() or isinstance(error, _TimedOut):
                raise late from None
            raise
        finally:
            timer.cancel()
            with self._lock:
                self._open.difference_update(tracked)
        if expired.is_set():  # what looks like the end of a reply is the end of its time
            raise late


def read(response: HTTPResponse, request: str, max_bytes: int) -> bytes:
    """The whole content, of at most `max_bytes`; of events, those up to the last one."""
    content = bytearray()
    while piece := response.read1(_PIECE):
        content += piece
        if len(content) > max_bytes:
            raise NoAnswer(f"the reply to {request} exceeds {max_bytes >> 20} MiB")
        if _END_OF_EVENTS in content[-len(piece) - len(_END_OF_EVENTS) :]:
            return bytes(content)
    if response.length:
        raise NoAnswer(f"the server closed the connection within the reply to {request}")
    return bytes(content)


class _TimedOut(NoAnswer):
    """A socket's own limit, which is the exchange's, came first."""


@contextmanager
def _failures(request: str) -> Iterator[None]:
    """Turn every failure of an exchange into an error of ours."""
    try:
        yield
    except TimeoutError:
        raise _TimedOut(f"no reply to {request} in time") from None
    except (OSError, HTTPException, ValueError) as error:
        kind = type(error).__name__
        raise NoAnswer(
            f"the server closed the connection, or broke HTTP, in its reply to {request} ({kind})"
        ) from None


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        # TLS's own shutdown would pull the session from under the thread that reads
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
