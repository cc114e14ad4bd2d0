"""Which web pages may send requests. Browsers tell the page's origin; programs tell none."""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from sruserve.server.errors import OriginNotAllowed
from sruserve.server.http.call import Message, Send

_READING = ("GET", "HEAD")
_PREFLIGHT_SECONDS = 600
_MOST_OWN = 300  # characters: of longer ones, and of those that are not ASCII, splitting takes long


class Origins:
    """The origins of pages that may send requests: those of this server, and those allowed.

    A page of this server has the request's own host as its origin. That host must be an IP
    address, `localhost` or the configured one: any other name may be one that its owner has made
    to point here (DNS rebinding).

    allowed: such as `https://app.example.com`; `*`: all.
    host: what the server listens on.
    """

    def __init__(self, allowed: Iterable[str] = (), host: str = "") -> None:
        self._allowed = {origin.strip().rstrip("/").lower() for origin in allowed} - {""}
        self._hosts = {"localhost", host.lower()}

    def check(self, scope: Message) -> str | None:
        """The origin that may read the reply, if it is another one; raises `OriginNotAllowed`."""
        origin: str | None = None
        site = b""
        for name, value in scope["headers"]:
            if name == b"origin":
                if origin is not None:
                    raise _refusal("two origins")
                origin = value.decode("latin-1").lower()
            elif name == b"sec-fetch-site":
                site = value
        if origin is None:
            reads = scope["type"] == "http" and scope["method"] in _READING
            if site == b"cross-site" and not reads and "*" not in self._allowed:
                raise _refusal("another site")
            return None
        if origin in self._allowed or "*" in self._allowed:
            return origin
        if self._is_own(origin, scope):
            return None
        raise _refusal(origin[:100])

    def _is_own(self, origin: str, scope: Message) -> bool:
        if len(origin) > _MOST_OWN or not origin.isascii():
            return False
        try:
            given = urlsplit(origin)
            name = given.hostname or ""
        except ValueError:
            return False
        hosts = [value for header, value in scope["headers"] if header == b"host"]
        own = [given.netloc.encode("latin-1")] == [host.lower() for host in hosts]
        if not own or "@" in given.netloc:
            return False
        if name in self._hosts or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def readable(send: Send, origin: str) -> Send:
    """Replies that a page of another origin may read."""

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), *_allowance(origin)]
            message = {**message, "headers": headers}
        await send(message)

    return tell


async def answer_preflight(scope: Message, send: Send, origin: str) -> None:
    """Tell a browser that the request which it asks about may be sent."""
    headers = [
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-max-age", b"%d" % _PREFLIGHT_SECONDS),
        *(
            (b"access-control-allow-headers", value)
            for name, value in scope["headers"]
            if name == b"access-control-request-headers"
        ),
        *_allowance(origin),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _allowance(origin: str) -> list[tuple[bytes, bytes]]:
    return [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin")]


def _refusal(origin: str) -> OriginNotAllowed:
    return OriginNotAllowed(
        f"pages of {origin} may not send requests to this server; ask the operator to add the "
        "page's origin to SRUSERVE_ALLOWED_ORIGINS"
    )
