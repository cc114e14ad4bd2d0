"""Generate the OpenAPI document from the routes."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from sruserve import __version__
from sruserve.server.http.openapi_parts import Json, Response, Schemas, plain
from sruserve.server.http.routes import ANY_REQUEST, ERROR_SHAPE, JSON, Route, path_parameters

_DESCRIPTION = """Inference for trained recurrent models. The state of a stream is a few kilobytes:
request it with `return_state`, and send it back as `state`, to any replica.

Every error is `{"error": {"message", "type", "param", "code"}}`; `code` never changes."""


_PATH_PARAMETERS = {
    "id": "Id of the stream, as `POST /v1/streams` returned it.",
    "model": "Id of a served model; `GET /v1/models` lists them.",
    "version": "Served version of the model, a number.",
    "name": "Name of a file of the documentation.",
    "file": "Name of a file of the page at `/`.",
}


def create_document(routes: Iterable[Route[Any]]) -> Json:
    """Describe all routes, in OpenAPI 3.1."""
    routes = tuple(routes)
    schemas = Schemas(routes)
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "sruserve", "description": _DESCRIPTION, "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas.definitions,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],  # a server without keys needs none
    }


def _operation(route: Route[Any], schemas: Schemas) -> Json:
    operation: Json = {
        "tags": [route.tag],
        "summary": route.summary,
        "operationId": _operation_id(route),
    }
    if route.description:
        operation["description"] = route.description
    parameters = [
        *(
            _parameter("path", name, _PATH_PARAMETERS[name], True)
            for name in path_parameters(route.path)
        ),
        *(_parameter("query", *entry, False) for entry in route.query.items()),
        *(_parameter("header", *entry, False) for entry in route.headers.items()),
    ]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {JSON: {"schema": schemas.of(route.body, "validation")}}
        content |= {media_type: {"schema": plain(media_type)} for media_type in route.body_types}
        operation["requestBody"] = {"content": content, "required": not route.body_is_optional}
    operation["responses"] = _responses(route, schemas)
    return operation


def _operation_id(route: Route[Any]) -> str:
    path = "".join(c if c.isalnum() else "_" for c in route.path)
    return f"{route.name}{path}_{route.method.lower()}"


def _parameter(location: str, name: str, description: str, required: bool) -> Json:
    return {
        "name": name,
        "in": location,
        "required": required,
        "description": description,
        "schema": {"type": "string"},
    }


def _responses(route: Route[Any], schemas: Schemas) -> Json:
    """The possible responses of a route, by status."""
    responses: defaultdict[int, Response] = defaultdict(Response)
    for reply in route.replies:
        responses[reply.status].add_reply(reply)
    for shape, errors in ((ERROR_SHAPE, ANY_REQUEST), (route.error_shape, route.errors)):
        for error in errors:
            responses[shape.status(error)].add_error(error, shape)
    return {str(status): responses[status].describe(schemas) for status in sorted(responses)}
