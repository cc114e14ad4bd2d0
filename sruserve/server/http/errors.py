"""The errors that only protocols raise: of bodies, heads, paths and connections.

They are `InvalidRequest`s like those of `server/errors.py`, which other callers raise, too.
"""

from collections.abc import Iterable

from sruserve.server.errors import InvalidRequest


class BodyTooLarge(InvalidRequest):
    """The body is over the operator's limit."""

    code = "body_too_large"


class HeadTooLarge(InvalidRequest):
    """The head of a request is too long, or has too many headers."""

    code = "head_too_large"


class RequestTimeout(InvalidRequest):
    """The client sent its request too slowly."""

    code = "request_timeout"


class UnsupportedMediaType(InvalidRequest):
    """The body is packed, or its content type is one that a page of any origin can send."""

    code = "unsupported_media_type"


class OriginNotAllowed(InvalidRequest):
    """The request comes from a web page whose origin is not allowed."""

    code = "origin_not_allowed"


class ClientCertificateRequired(InvalidRequest):
    """The client has sent no certificate, which the server requires, or a weak one."""

    code = "client_certificate_required"


class RouteNotFound(InvalidRequest):
    """No route has this path."""

    code = "route_not_found"


class MethodNotAllowed(InvalidRequest):
    """The path exists, but not for this method.

    allowed: the methods of the path.
    """

    code = "method_not_allowed"

    def __init__(self, message: str, *, allowed: Iterable[str]) -> None:
        super().__init__(message)
        self.allowed = tuple(allowed)


class UpgradeRequired(InvalidRequest):
    """The path is a WebSocket's, and the request is not an upgrade."""

    code = "upgrade_required"
