"""Whatever the OpenAPI document allows a client to send, and more: replies are what it says."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.generation.hypothesis.builder import (
    HypothesisTestConfig,
    HypothesisTestMode,
    create_test,
)
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from sruserve.server.app import ROUTES
from sruserve.server.errors import UnfitInput
from sruserve.server.http.openapi import create_document
from sruserve.server.http.routes import ANY_REQUEST, ERROR_SHAPE, Route
from tests.server.conftest import Serve

MODELS = ("question", "sensor", "characters")
TASKS = ("tagger", "small", "pairs")
REFUSALS = (501, 503, 504)  # what is not offered, and a `timeout_ms` that has passed
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def every(serve: Serve, folders: Path, task_folders: Path) -> Iterator[httpx.Client]:
    """A server with a model of every task."""
    chosen = [folders / name for name in MODELS] + [task_folders / name for name in TASKS]
    with serve(models=None, model_folders=tuple(chosen), max_new_tokens=64) as (client, _):
        yield client


@pytest.fixture(scope="module")
def described() -> Any:
    """What draws requests that the document describes, and others."""
    return schemathesis.openapi.from_dict(create_document(ROUTES))


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """Keeps its connection, and reads nothing of the environment for each request."""
    with requests.Session() as session:
        session.trust_env = False
        yield session


# Not `described.parametrize()`, which draws in every process that collects tests, and gives all
# operations one name, of which xdist then runs one.
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_no_reply_is_other_than_documented(
    route: Route[Any], described: Any, every: httpx.Client, session: requests.Session
) -> None:
    url = str(every.base_url)

    @settings(
        max_examples=8,
        deadline=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        _make_likely(case, every)
        reply = case.call_and_validate(base_url=url, session=session, checks=CHECKS)
        assert reply.status_code < 500 or reply.status_code in REFUSALS, reply.text

    operation = described[route.path][route.method]
    config = HypothesisTestConfig(described.config, list(HypothesisTestMode))
    create_test(operation=operation, test_func=check, config=config)()


def _make_likely(case: Any, client: httpx.Client) -> None:
    """Let some of the examples be about a model and a stream that exist."""
    if "model" in case.path_parameters and len(case.path_parameters["model"]) % 2:
        case.path_parameters["model"] = MODELS[len(case.path_parameters) % len(MODELS)]
        if "version" in case.path_parameters:
            case.path_parameters["version"] = "1"
    if "id" in case.path_parameters and len(case.path_parameters["id"]) % 2:
        made = client.post("/v1/streams", json={"model": "characters"}).json()
        case.path_parameters["id"] = made["id"]


def _undescribed(part: Any, path: str) -> Iterator[str]:
    """The paths of properties without a description in a part of a document."""
    if isinstance(part, list):
        for number, entry in enumerate(part):
            yield from _undescribed(entry, f"{path}/{number}")
    elif isinstance(part, dict):
        properties = part.get("properties", {})
        for name, entry in properties.items():
            if not (isinstance(entry, dict) and entry.get("description", "").endswith(".")):
                yield f"{path}/{name}"
        for name, entry in part.items():
            yield from _undescribed(entry, f"{path}/{name}")


def test_every_field_of_every_schema_is_described() -> None:
    schemas = create_document(ROUTES)["components"]["schemas"]
    assert len(schemas) > 50
    assert list(_undescribed(schemas, "")) == []


def test_every_parameter_is_described() -> None:
    for path, operations in create_document(ROUTES)["paths"].items():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                assert parameter["description"].endswith("."), (path, parameter["name"])


def test_every_path_that_is_served_is_in_the_document(every: httpx.Client) -> None:
    paths = every.get("/openapi.json").json()["paths"]
    for path in ("/predict", "/v1/streams/{id}/steps", "/v2/models/{model}/infer"):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert re.search("[$]ref|anyOf", str(body))
    for path, operations in paths.items():
        place = re.sub("{[^}]*}", "1", path)
        for method in ("get", "post", "delete"):
            if method not in operations:
                assert every.request(method, place).status_code in (404, 405), (method, path)


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> dict[str, Any]:
    parsed: dict[str, Any] = client.get("/openapi.json").json()
    return parsed


HOT = [
    *("/v1/classify", "/v1/tag", "/v1/encode", "/v1/completions", "/v1/score", "/v1/responses"),
    *("/v1/embeddings", "/tokenize", "/detokenize"),
]


@pytest.mark.parametrize("path", HOT)
def test_hot_routes_are_documented_with_schemas_and_examples(
    document: dict[str, Any], path: str
) -> None:
    operation = document["paths"][path]["post"]
    for content in (
        operation["requestBody"]["content"],
        operation["responses"]["200"]["content"],
        operation["responses"]["429"]["content"],
    ):
        name = content["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
        assert document["components"]["schemas"][name]["properties"]
    request = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert document["components"]["schemas"][request.rsplit("/", 1)[1]]["examples"]


def test_documented_examples_work(
    client: httpx.Client, tasks: httpx.Client, document: dict[str, Any]
) -> None:
    models = {"/v1/classify": "question", "/v1/tag": "tagger", "/v1/encode": "small"}
    models["/v1/embeddings"] = "question"
    for path in HOT:
        reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        name = reference["schema"]["$ref"].rsplit("/", 1)[1]
        for example in document["components"]["schemas"][name]["examples"]:
            model = "pairs" if "pair" in example else models.get(path, "characters")
            http = tasks if model in ("pairs", "tagger", "small") else client
            reply = http.post(path, json={"model": model} | example)
            assert reply.status_code == 200, reply.text


def test_the_documentation_offers_to_send_an_api_key(document: dict[str, Any]) -> None:
    scheme = document["components"]["securitySchemes"]["key"]
    assert scheme == {"type": "http", "scheme": "bearer"}
    assert document["security"] == [{}, {"key": []}]  # where the server has none, none is needed


def test_every_documented_page_answers(client: httpx.Client, document: dict[str, Any]) -> None:
    stream = client.post("/v1/streams", json={"model": "question"}).json()["id"]
    chosen = {
        "{model}": "question",
        "{version}": "1",
        "{id}": stream,
        "{name}": "start.js",
        "{file}": "app.js",
    }
    for path, operations in document["paths"].items():
        if "get" in operations:
            page = re.sub("{[^}]*}", lambda match: chosen[match[0]], path)
            expected = 426 if "101" in operations["get"]["responses"] else 200
            assert client.get(page).status_code == expected, path
    client.delete(f"/v1/streams/{stream}")


def test_the_document_is_valid_openapi_3_1(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    schemathesis.openapi.from_dict(document).validate()


def test_each_route_has_an_operation_of_its_own(document: dict[str, Any]) -> None:
    operations = [
        (method.upper(), path, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    assert [each[:2] for each in operations] == [
        (route.method, route.path)
        for path in dict.fromkeys(route.path for route in ROUTES)
        for route in ROUTES
        if route.path == path
    ]
    assert len({operation["operationId"] for *_, operation in operations}) == len(ROUTES)
    for *_, operation in operations:
        assert 0 < len(operation["summary"]) < 80


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_route_names_each_of_its_errors_with_its_status(
    route: Route[Any], document: dict[str, Any]
) -> None:
    responses = document["paths"][route.path][route.method.lower()]["responses"]
    for error in (*ANY_REQUEST, *route.errors):
        shape = ERROR_SHAPE if error in ANY_REQUEST else route.error_shape
        response = responses[str(shape.status(error))]
        assert error is UnfitInput or f"- `{error.code}`: " in response["description"]
        if error.retry_after_seconds is not None:
            assert "Retry-After" in response["headers"]


def test_a_status_whose_codes_are_known_allows_no_other(document: dict[str, Any]) -> None:
    response = document["paths"]["/v1/streams/{id}/steps"]["post"]["responses"]["409"]
    error = response["content"]["application/json"]["schema"]["properties"]["error"]
    assert error["properties"]["code"] == {"enum": ["wrong_step"]}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/streams/{id}/steps"])
def test_the_events_of_a_stream_have_a_schema(document: dict[str, Any], path: str) -> None:
    schema = document["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]
    names = [each["$ref"].rsplit("/", 1)[1] for each in schema["schema"]["contentSchema"]["anyOf"]]
    assert names == ["CompletionReply", "ErrorReply"]


def test_a_body_that_may_be_left_out_is_not_required(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    optional = {
        path
        for path, operations in document["paths"].items()
        if not operations.get("post", {}).get("requestBody", {"required": True})["required"]
    }
    assert optional == {
        "/v1/streams",
        "/v1/streams/{id}/fork",
        "/v2/repository/index",
        "/v2/repository/models/{model}/load",
        "/v2/repository/models/{model}/unload",
    }
    stream = client.post("/v1/streams", json={"model": "question"}).json()["id"]
    assert client.post(f"/v1/streams/{stream}/fork").status_code == 201
    assert client.post("/v2/repository/index").status_code == 200
    assert client.post("/v2/repository/models/question/load").status_code == 403
    assert client.post("/v1/streams").json()["error"]["param"] == "model"
