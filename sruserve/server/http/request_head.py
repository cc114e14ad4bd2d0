"""The head of an HTTP request, whether it asks for a reply or opens a WebSocket."""

import re
from collections.abc import MutableMapping
from typing import Any

from sruserve.server.errors import ServeError
from sruserve.server.http.error_mapping import headers_of
from sruserve.server.observation.observation import Description
from sruserve.server.observation.traceparent import TraceParent, read_traceparent

JSON_TYPE = (b"content-type", b"application/json")
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
# Of all ids that a client sends, only these are logged: any other may be a text, or a key.
_UUID = re.compile(rb"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

Scope = MutableMapping[str, Any]
Headers = dict[bytes, bytes]
"""By their names in lower case; of several of one name, the first."""


def request_id(headers: Headers, number: str) -> bytes:
    """The client's id of the request if it is valid, else the server's."""
    sent = headers.get(b"x-request-id")
    return sent if sent is not None and _REQUEST_ID.fullmatch(sent) else number.encode()


def describe(
    protocol: str, scope: Scope, headers: Headers, method: str, number: str, status: int | None
) -> Description:
    """The request in a log or a trace. number: the server's id of it."""
    sent = headers.get(b"x-request-id", b"")
    logged_id = sent.decode() if _UUID.fullmatch(sent) else number
    return Description(protocol, logged_id, method, status, parent_of(scope))


def parent_of(scope: Scope) -> TraceParent | None:
    """The client's span, of which the request is a part."""
    sent = [value for name, value in scope["headers"] if name == b"traceparent"]
    return read_traceparent(sent[0].decode("latin-1")) if len(sent) == 1 else None


def refusal_headers(error: ServeError, size: int) -> list[tuple[bytes, bytes]]:
    """The headers of an error's reply. size: of its body."""
    headers = [JSON_TYPE, (b"content-length", b"%d" % size)]
    return [
        *headers,
        *((name.encode(), value.encode()) for name, value in headers_of(error).items()),
    ]
