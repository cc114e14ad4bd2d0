"""Parts of the OpenAPI document: the schemas of types, and the responses of one status."""

from collections import defaultdict
from collections.abc import Iterable
from inspect import getdoc
from typing import Any, Literal

from pydantic import TypeAdapter

from sruserve.server.errors import ServeError, Unauthorized, UnfitInput
from sruserve.server.http.errors import UpgradeRequired
from sruserve.server.http.routes import ERROR_SHAPE, EVENTS, JSON, ErrorShape, Reply, Route

Json = dict[str, Any]
Mode = Literal["validation", "serialization"]

_RETRY_AFTER = "Seconds to wait before sending the same request again."
_SHOULD_RETRY = "Whether to send the same request again, if the status alone would mislead clients."
_EVENTS = "Events with JSON data; the data of the last event is [DONE]."
_HEADERS = {
    Unauthorized: ("WWW-Authenticate", "How to send a key."),
    UpgradeRequired: ("Upgrade", "The protocol that the path needs."),
}


class Schemas:
    """The schemas of all types of the routes, and of the types that they refer to."""

    def __init__(self, routes: Iterable[Route[Any]]) -> None:
        types: dict[tuple[Any, Mode], TypeAdapter[Any]] = {}
        for route in routes:
            for type_ in (
                ERROR_SHAPE.schema,
                route.error_shape.schema,
                *(reply.schema for reply in route.replies),
            ):
                _add(types, type_, "serialization")
            _add(types, route.body, "validation")
        schemas, shared = TypeAdapter.json_schemas(
            [(type_, mode, adapter) for (type_, mode), adapter in types.items()],
            ref_template="#/components/schemas/{model}",
        )
        self._schemas = schemas
        self.definitions: Json = shared["$defs"]

    def of(self, type_: Any, mode: Mode = "serialization") -> Json:
        """The schema of a type."""
        return dict(self._schemas[type_, mode])


def _add(types: dict[tuple[Any, Mode], TypeAdapter[Any]], type_: Any, mode: Mode) -> None:
    if type_ is not None and (type_, mode) not in types:
        types[type_, mode] = TypeAdapter(type_)


class Response:
    """The replies and errors of a route with one status."""

    def __init__(self) -> None:
        self._replies: list[Reply] = []
        self._errors: defaultdict[ErrorShape, dict[type[ServeError], str]] = defaultdict(dict)

    def add_reply(self, reply: Reply) -> None:
        """Add a reply."""
        self._replies.append(reply)

    def add_error(self, error: type[ServeError], shape: ErrorShape) -> None:
        """Add an error in a protocol's shape."""
        self._errors[shape][error] = error.code

    def describe(self, schemas: Schemas) -> Json:
        """The Response Object of OpenAPI."""
        headers: dict[str, str] = {}
        content: defaultdict[str, list[Json]] = defaultdict(list)
        for reply in self._replies:
            headers |= reply.headers
            if reply.media_type:
                content[reply.media_type].append(_schema_of(reply, schemas))
        for shape, errors in self._errors.items():
            for error in errors:
                headers |= _headers_of(error)
            content[JSON].append(_schema_of_errors(shape, errors, schemas))
        described: Json = {"description": self._description()}
        if headers:
            described["headers"] = {
                name: {"description": description, "schema": {"type": "string"}}
                for name, description in headers.items()
            }
        if content:
            described["content"] = {
                media_type: {"schema": options[0] if len(options) == 1 else {"anyOf": options}}
                for media_type, options in content.items()
            }
        return described

    def _description(self) -> str:
        """The descriptions of the replies, then those of the error codes."""
        lines = dict.fromkeys(reply.description for reply in self._replies if reply.description)
        meanings: dict[str, str] = {}
        for errors in self._errors.values():
            for error in errors:
                code = "a code of the model" if error is UnfitInput else f"`{error.code}`"
                meanings.setdefault(code, (getdoc(error) or "").partition("\n")[0])
        codes = [f"- {code}: {meaning}" for code, meaning in meanings.items()]
        return "\n".join([*lines, *codes]) or "The reply."


def _schema_of(reply: Reply, schemas: Schemas) -> Json:
    if reply.media_type == EVENTS:
        return {
            "type": "string",
            "description": reply.description or _EVENTS,
            "contentMediaType": EVENTS,
            "contentSchema": schemas.of(reply.schema),
        }
    return plain(reply.media_type) if reply.schema is None else schemas.of(reply.schema)


def _schema_of_errors(
    shape: ErrorShape, errors: Iterable[type[ServeError]], schemas: Schemas
) -> Json:
    schema = schemas.of(shape.schema)
    if shape.coded and UnfitInput not in errors:
        codes = sorted({error.code for error in errors})
        schema["properties"] = {"error": {"properties": {"code": {"enum": codes}}}}
    return schema


def _headers_of(error: type[ServeError]) -> dict[str, str]:
    headers = dict([_HEADERS[error]]) if error in _HEADERS else {}
    if error.retry_after_seconds is not None:
        headers["Retry-After"] = _RETRY_AFTER
    if error.retry is not None:
        headers["X-Should-Retry"] = _SHOULD_RETRY
    return headers


def plain(media_type: str) -> Json:
    """The schema of a body that is not JSON."""
    return {"type": "string"} if media_type.startswith("text/") else {}
