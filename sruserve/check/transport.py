"""Requests to an untrusted server: their number and the size of their replies are bounded."""

import json
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sruserve.check.address import Address
from sruserve.check.connections import Connections, read
from sruserve.check.errors import Misuse, NoAnswer, Refused
from sruserve.model.errors import printable

_ATTEMPTS = 4  # of a request that the server puts off with 429 or 503
_MAX_WAIT_SECONDS = 5.0
MAX_REPLY_BYTES = 16 << 20

Body = Mapping[str, Any]
Ready = Callable[[], None]


class Access(NamedTuple):
    """How all servers of an examination are reached. key: empty if they need none.

    max_reply_bytes: read of a reply.
    """

    key: str = ""
    timeout_seconds: float = 60.0
    tls: ssl.SSLContext | None = None
    max_reply_bytes: int = MAX_REPLY_BYTES


class _Reply(NamedTuple):
    status: int
    retry_after: str | None
    location: str | None
    content: bytes


class Transport:
    """Requests to one server, each over a connection of its own. Threads may share it.

    Redirects are not followed, so a key goes to no other server.
    requests: the number of requests sent so far; at most `max_requests`.
    """

    def __init__(self, address: Address, access: Access, max_requests: int) -> None:
        if not access.key.isascii() or not access.key.isprintable():
            raise Misuse("the API key has characters that no HTTP header can carry")
        self.address, self.requests = address, 0
        self._key, self._max_requests = access.key, max_requests
        self._max_reply_bytes = access.max_reply_bytes
        self._connections = Connections(address, access.timeout_seconds, access.tls)
        self._lock = threading.Lock()

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
        request = f"POST {path}"
        content = self._request("POST", path, body, ready)
        lines = [line[5:].strip() for line in content.splitlines() if line.startswith(b"data:")]
        events = [self._json(request, line) for line in lines if line != b"[DONE]"]
        for event in events:
            if isinstance(event, dict) and event.get("error"):
                message = self._shown(_error(json.dumps(event).encode())[0])[:200]
                raise NoAnswer(f"the events of {request} end with an error: {message}")
        if not events:
            raise NoAnswer(f"the reply to {request} has no server-sent events")
        return events

    def close(self) -> None:
        """End all requests that run, and refuse later ones."""
        self._connections.close()

    def _request(self, method: str, path: str, body: Body | None, ready: Ready | None) -> bytes:
        """Send a request until the server does not put it off any more, and return its content."""
        request = f"{method} {path}"
        for attempt in range(_ATTEMPTS):
            self._count()
            reply = self._send(method, path, body, ready if attempt == 0 else None)
            if reply.status not in (429, 503) or attempt == _ATTEMPTS - 1:
                break
            if self._connections.closed.wait(_wait_seconds(reply.retry_after)):
                break
        if 200 <= reply.status < 300:
            return reply.content
        if reply.location is not None and 300 <= reply.status < 400:
            where = self._shown(reply.location)
            raise Refused(reply.status, f"it redirects to {where}; use that address", request)
        message, code = _error(reply.content)
        raise Refused(reply.status, self._shown(message), request, code)

    def _send(self, method: str, path: str, body: Body | None, ready: Ready | None) -> _Reply:
        request = f"{method} {path}"
        content = None if body is None else json.dumps(body).encode()
        with self._connections.exchange(request) as connection:
            if ready is not None:
                ready()
            connection.request(
                method, f"{self.address.prefix}{path}", content, self._headers(content)
            )
            response = connection.getresponse()
            return _Reply(
                response.status,
                response.getheader("retry-after"),
                response.getheader("location"),
                read(response, request, self._max_reply_bytes),
            )

    def _count(self) -> None:
        with self._lock:
            if self._connections.closed.is_set():
                raise NoAnswer("the examination was stopped")
            if self.requests >= self._max_requests:
                raise NoAnswer(f"all {self._max_requests} announced requests are used up")
            self.requests += 1

    def _headers(self, content: bytes | None) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": "sruserve"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        return headers

    def _json(self, request: str, content: bytes) -> Any:
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            shown = self._shown(content[:4096].decode("utf-8", "replace"))[:40]
            raise NoAnswer(f"the reply to {request} is not JSON but {shown!r}…") from None

    def _shown(self, text: str) -> str:
        """A text of the server, for a message: without the key, which it may repeat."""
        return printable(text.replace(self._key, "***") if self._key else text)


def _wait_seconds(retry_after: str | None) -> float:
    try:
        seconds = float(retry_after or 1)
    except ValueError:  # a date
        seconds = 1.0
    return min(seconds, _MAX_WAIT_SECONDS) if seconds > 0 else 0.1


def _error(content: bytes) -> tuple[str, str]:
    """Message and code of an error: {"error": {"message", "code"}}, {"error": text} and others."""
    try:
        error = json.loads(content)
    except (ValueError, RecursionError):
        return content[:4096].decode("utf-8", "replace"), ""
    code: Any = ""
    for _ in range(2):
        if isinstance(error, dict):
            code = error.get("code", code)
            keys = [key for key in ("error", "message", "detail") if key in error]
            error = error[keys[0]] if keys else ""
    message = error if isinstance(error, str) else json.dumps(error)
    return message, code if isinstance(code, str) else ""
