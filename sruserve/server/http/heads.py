"""Limits on the heads of requests, and what this server does not understand in them."""

from collections.abc import Sequence

from sruserve.server.http.errors import HeadTooLarge

MAX_HEAD_BYTES = 64 << 10  # of a head, or of what the parser takes between parts of a body
MAX_UPGRADE_BYTES = 1 << 10  # of the headers that request another protocol, which are read at once
_MAX_TARGET_BYTES = 8 << 10  # of a path and its query: splitting more would block the event loop
_MAX_HEADERS = 256
_MAX_LENGTH_DIGITS = 19  # of a Content-Length: Python does not read thousands of digits

Headers = Sequence[tuple[bytes, bytes]]  # names in lower case


def exceeds_limits(url: bytes, headers: Headers | None) -> bool:
    """Whether a head, as far as it is received, has a target or headers over the limits."""
    return len(url) > _MAX_TARGET_BYTES or len(headers or ()) > _MAX_HEADERS


def syntax_error(version: str, url: bytes, headers: Headers) -> str | None:
    """What is wrong with a head; None if this server understands it. version: of HTTP."""
    if b"#" in url:  # the parser would cut the path there, and a proxy might not
        return "The target of a request has no fragment (#)."
    hosts = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding" and (value.lower() != b"chunked" or version == "1.0"):
            return "The only transfer encoding is chunked, and HTTP 1.0 has none."
        elif name == b"content-length" and len(value) > _MAX_LENGTH_DIGITS:
            return f"A Content-Length must have up to {_MAX_LENGTH_DIGITS} digits."
    if version not in ("1.1", "1.0"):
        return "This server speaks HTTP/1.1."
    if hosts != 1 and (hosts or version == "1.1"):
        return "A request must have one Host header."
    return None


def too_large() -> HeadTooLarge:
    """The error of a head over one of the limits."""
    return HeadTooLarge(
        "the head of the request is too long or has too many headers; send up to "
        f"{_MAX_HEADERS} headers and {MAX_HEAD_BYTES} bytes, of these up to "
        f"{_MAX_TARGET_BYTES} of the path and its query, and {MAX_UPGRADE_BYTES} of the "
        "headers that request another protocol, such as a WebSocket"
    )


def announces_body(headers: Headers) -> bool:
    """Whether a head is followed by a body."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and bool(value.strip(b"0")))
        for name, value in headers
    )


def upgrade_bytes(headers: Headers) -> int:
    """Bytes of the headers that request another protocol."""
    return sum(
        len(value)
        for name, value in headers
        if name in (b"connection", b"upgrade") or name.startswith(b"sec-websocket-")
    )


def without_upgrade(method: str, url: bytes, version: str, headers: Headers) -> bytes:
    """The head without its request for another protocol."""
    lines = [b"%b %b HTTP/%b" % (method.encode(), url, version.encode())]
    lines += [b"%b: %b" % header for header in headers if header[0] != b"upgrade"]
    return b"\r\n".join([*lines, b"", b""])
