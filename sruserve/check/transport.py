"""HTTP to a server that nobody trusts: every request has a deadline, and every reply a bound."""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, NamedTuple

from sruserve.check.address import Address
from sruserve.check.errors import CheckError, Misuse, NoAnswer, Refused, Unreachable
from sruserve.model.errors import printable

MAX_REPLY_BYTES = 16 << 20
_PIECE = 1 << 16
_ATTEMPTS = 4  # of a request that the server puts off with 429 or 503
_MAX_WAIT_SECONDS = 5.0
_END_OF_EVENTS = b"data: [DONE]"

Body = Mapping[str, Any]
Ready = Callable[[], None]


class Access(NamedTuple):
    """How all servers of an examination are reached. key: empty if they need none."""

    key: str = ""
    timeout_seconds: float = 60.0
    tls: ssl.SSLContext | None = None


class _Exchange(NamedTuple):
    status: int
    retry_after: str | None
    location: str | None
    content: bytes


class Transport:
    """Requests to one server, each over a connection of its own. Threads may share it.

    requests: the number of requests sent so far; at most `most_requests`.
    """

    def __init__(self, address: Address, access: Access, most_requests: int) -> None:
        if not access.key.isascii() or not access.key.isprintable():
            raise Misuse("the API key has characters that no HTTP header can carry")
        self.address, self.requests = address, 0
        self._access, self._most_requests = access, most_requests
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = threading.Event()
        self._tls = access.tls
        if access.tls is None and address.scheme == "https":
            self._tls = ssl.create_default_context()

    def get(self, path: str) -> Any:
        """The JSON of a reply."""
        return self._json(f"GET {path}", self._request("GET", path, None, None))

    def post(self, path: str, body: Body, ready: Ready | None = None) -> Any:
        """The JSON of a reply. ready: called once, when the connection is open."""
        return self._json(f"POST {path}", self._request("POST", path, body, ready))

    def delete(self, path: str) -> None:
        self._request("DELETE", path, None, None)

    def events(self, path: str, body: Body, ready: Ready | None = None) -> list[Any]:
        """The JSON of all server-sent events of a reply, without the last `[DONE]`."""
        content = self._request("POST", path, body, ready)
        lines = [line[5:].strip() for line in content.splitlines() if line.startswith(b"data:")]
        parsed = [self._json(f"POST {path}", line) for line in lines if line != b"[DONE]"]
        if not parsed:
            raise NoAnswer(f"the reply to POST {path} has no server-sent events")
        return parsed

    def close(self) -> None:
        """End all requests that run, and refuse later ones."""
        self._closed.set()
        with self._lock:
            for connection in self._open:
                _shut(connection)

    def _request(self, method: str, path: str, body: Body | None, ready: Ready | None) -> bytes:
        """Send a request until the server does not put it off any more, and return its content."""
        name = f"{method} {path}"
        for attempt in range(_ATTEMPTS):
            got = self._exchange(method, path, body, ready if attempt == 0 else None)
            if got.status not in (429, 503) or attempt == _ATTEMPTS - 1:
                break
            if self._closed.wait(_wait_seconds(got.retry_after)):
                break
        if 200 <= got.status < 300:
            return got.content
        if got.location is not None and 300 <= got.status < 400:
            where = self._shown(got.location)
            raise Refused(got.status, f"it redirects to {where}; use that address instead", name)
        raise Refused(got.status, self._shown(_message(got.content)), name)

    def _exchange(
        self, method: str, path: str, body: Body | None, ready: Ready | None
    ) -> _Exchange:
        self._count()
        request = f"{method} {path}"
        with self._deadline(request) as track, _failures(request):
            connection = self._connect(track)
            try:
                if ready is not None:
                    ready()
                content = None if body is None else json.dumps(body).encode()
                connection.request(
                    method, f"{self.address.prefix}{path}", content, self._headers(body)
                )
                response = connection.getresponse()
                return _Exchange(
                    response.status,
                    response.getheader("retry-after"),
                    response.getheader("location"),
                    _read(response, request),
                )
            finally:
                connection.close()

    def _count(self) -> None:
        with self._lock:
            if self._closed.is_set():
                raise NoAnswer("the examination was stopped")
            if self.requests >= self._most_requests:
                raise NoAnswer(f"all {self._most_requests} announced requests are used up")
            self.requests += 1

    def _headers(self, body: Body | None) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": "sruserve"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._access.key:
            headers["Authorization"] = f"Bearer {self._access.key}"
        return headers

    def _connect(self, track: Callable[[socket.socket], None]) -> HTTPConnection:
        host, port = self.address.host, self.address.port
        try:
            plain = socket.create_connection((host, port), self._access.timeout_seconds)
        except OSError as error:
            raise Unreachable(
                f"cannot connect to {self.address}: {error.strerror or error}; "
                "check the address, and that the server runs"
            ) from None
        if self._tls is None or self.address.scheme == "http":
            track(plain)
            connection = HTTPConnection(host, port)
            connection.sock = plain
            return connection
        try:
            encrypted = self._tls.wrap_socket(
                plain, server_hostname=host, do_handshake_on_connect=False
            )
            track(encrypted)
            encrypted.do_handshake()
        except ssl.SSLCertVerificationError as error:
            raise Unreachable(
                f"the certificate of {self.address} is not trusted: {error.verify_message}; "
                "name its authority with --ca-file"
            ) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise Unreachable(f"no TLS with {self.address}: {reason}; is it http://?") from None
        secure = HTTPSConnection(host, port, context=self._tls)
        secure.sock = encrypted
        return secure

    @contextmanager
    def _deadline(self, request: str) -> Iterator[Callable[[socket.socket], None]]:
        """Shut the connection that the block tracks once its time is over, and say so.

        A timeout of a socket alone would begin again with each byte that arrives.
        """
        tracked: list[socket.socket] = []
        expired = threading.Event()
        seconds = self._access.timeout_seconds

        def track(connection: socket.socket) -> None:
            with self._lock:
                tracked.append(connection)
                self._open.add(connection)
                if self._closed.is_set() or expired.is_set():
                    _shut(connection)

        def expire() -> None:
            expired.set()
            with self._lock:
                for connection in tracked:
                    _shut(connection)

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        late = NoAnswer(
            f"no complete reply to {request} within {seconds:g} s; raise --timeout if the server "
            "needs longer"
        )
        try:
            yield track
        except CheckError:
            if expired.is_set():
                raise late from None
            raise
        finally:
            timer.cancel()
            with self._lock:
                self._open.difference_update(tracked)
        if expired.is_set():  # what looks like the end of a reply is the end of its time
            raise late

    def _json(self, request: str, content: bytes) -> Any:
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            shown = self._shown(content[:40].decode("utf-8", "replace"))
            raise NoAnswer(f"the reply to {request} is not JSON but {shown!r}…") from None

    def _shown(self, text: str) -> str:
        """A text of the server, for a message: without the key, which it may repeat."""
        key = self._access.key
        return printable(text.replace(key, "***") if key else text)


@contextmanager
def _failures(request: str) -> Iterator[None]:
    """Turn every failure of an exchange into an error of ours."""
    try:
        yield
    except TimeoutError:
        raise NoAnswer(f"no reply to {request} in time; raise --timeout") from None
    except (OSError, HTTPException, ValueError) as error:
        kind = type(error).__name__
        raise NoAnswer(f"the server closed or broke the reply to {request} ({kind})") from None


def _read(response: HTTPResponse, request: str) -> bytes:
    """The whole content, of at most `MAX_REPLY_BYTES`; of events, those up to the last one."""
    content = bytearray()
    while piece := response.read1(_PIECE):
        content += piece
        if len(content) > MAX_REPLY_BYTES:
            raise NoAnswer(f"the reply to {request} exceeds {MAX_REPLY_BYTES >> 20} MiB")
        if _END_OF_EVENTS in content[-len(piece) - len(_END_OF_EVENTS) :]:
            return bytes(content)
    if response.length:
        raise NoAnswer(f"the server closed the connection within the reply to {request}")
    return bytes(content)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        # TLS's own shutdown would pull the session from under the thread that reads
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _wait_seconds(retry_after: str | None) -> float:
    try:
        seconds = float(retry_after or 1)
    except ValueError:  # a date
        seconds = 1.0
    return min(seconds, _MAX_WAIT_SECONDS) if seconds > 0 else 0.1


def _message(content: bytes) -> str:
    """The text of an error in one of the usual shapes: {"error": {"message"}}, {"error": text} …"""
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        return content[:200].decode("utf-8", "replace")
    for _ in range(2):
        if isinstance(said, dict):
            keys = [key for key in ("error", "message", "detail") if key in said]
            said = said[keys[0]] if keys else ""
    return said if isinstance(said, str) else json.dumps(said)[:300]
