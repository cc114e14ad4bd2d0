"""Which web pages may send requests and read replies (CORS).

Browsers send the page's origin; programs send none.
"""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from sruserve.server.http.call import Message, Send
from sruserve.server.http.errors import OriginNotAllowed

_SAFE_METHODS = ("GET", "HEAD")
_SECURE_SCHEMES = ("https", "wss")
_PREFLIGHT_SECONDS = 600
# Pages may also read these headers, beside content-type, content-length and the like.
_EXPOSED = b"x-request-id, retry-after, x-should-retry, inference-header-content-length"
_MAX_OWN_CHARACTERS = 300  # parsing a longer origin, or one that is not ASCII, takes long


class Origins:
    """The origins of pages that may send requests: the server's own, and the allowed ones.

    The origin of the server's own pages is the request's host. That host must be an IP address,
    `localhost` or the configured host, because the owner of any other name may point it here (DNS
    rebinding). Over TLS, a page of `http://` is not the server's own, whatever its host: anybody on
    the network can change such pages.

    allowed: origins as browsers send them, for example `https://app.example.com`; `*`: all.
    host: the address that the server listens on.
    """

    def __init__(self, allowed: Iterable[str] = (), host: str = "") -> None:
        self._allowed = frozenset(allowed)
        self._hosts = {"localhost", host.lower()}

    def check(self, scope: Message) -> str | None:
        """The foreign origin that may read the reply, if any; raises `OriginNotAllowed`."""
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
            is_safe = scope["type"] == "http" and scope["method"] in _SAFE_METHODS
            if site == b"cross-site" and not is_safe and "*" not in self._allowed:
                raise _refusal("another site")
            return None
        if origin in self._allowed or "*" in self._allowed:
            return origin
        if site in (b"", b"same-origin") and self._is_own(origin, scope):
            return None
        raise _refusal(origin[:100])

    def _is_own(self, origin: str, scope: Message) -> bool:
        if len(origin) > _MAX_OWN_CHARACTERS or not origin.isascii():
            return False
        try:
            url = urlsplit(origin)
            name = url.hostname or ""
        except ValueError:
            return False
        hosts = [value for header, value in scope["headers"] if header == b"host"]
        is_host = [url.netloc.encode("latin-1")] == [host.lower() for host in hosts]
        if not is_host or "@" in url.netloc:
            return False
        if scope["scheme"] in _SECURE_SCHEMES and url.scheme != "https":
            return False
        if name in self._hosts or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def readable(send: Send, origin: str) -> Send:
    """Add the headers that let pages of another origin read the replies."""

    async def send_readable(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [
                *message.get("headers", ()),
                *_cors_headers(origin),
                (b"access-control-expose-headers", _EXPOSED),
            ]
            message = {**message, "headers": headers}
        await send(message)

    return send_readable


async def answer_preflight(scope: Message, send: Send, origin: str) -> None:
    """Allow the request that a browser's preflight asks about."""
    headers = [
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-max-age", b"%d" % _PREFLIGHT_SECONDS),
        *(
            (b"access-control-allow-headers", value)
            for name, value in scope["headers"]
            if name == b"access-control-request-headers"
        ),
        *_cors_headers(origin),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _cors_headers(origin: str) -> list[tuple[bytes, bytes]]:
    """Never with `access-control-allow-credentials`: a page sends a key itself."""
    return [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin")]


def _refusal(origin: str) -> OriginNotAllowed:
    return OriginNotAllowed(
        f"pages of {origin} may not send requests to this server; ask the operator to add the "
        "page's origin to SRUSERVE_ALLOWED_ORIGINS"
    )
