"""Whatever the OpenAPI document allows a client to send, and more: replies are what it says."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from sruserve.server.http.management import create_pages
from sruserve.server.kserve.http.openapi import router as kserve_pages
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.settings import load_settings
from sruserve.server.websocket.session import PATH as SOCKET
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


schema = schemathesis.openapi.from_dict(
    create_pages(Lifecycle(load_settings()), SOCKET, kserve_pages).openapi()
)


@schema.parametrize()
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_no_reply_is_other_than_documented(case: Any, every: httpx.Client) -> None:
    _make_likely(case, every)
    reply = case.call_and_validate(base_url=str(every.base_url), checks=CHECKS)
    assert reply.status_code < 500 or reply.status_code in REFUSALS, reply.text


def _make_likely(case: Any, client: httpx.Client) -> None:
    """Let some of the examples be about a model and a stream that exist."""
    if "model" in case.path_parameters and len(case.path_parameters["model"]) % 2:
        case.path_parameters["model"] = MODELS[len(case.path_parameters) % len(MODELS)]
        if "version" in case.path_parameters:
            case.path_parameters["version"] = "1"
    if "id" in case.path_parameters and len(case.path_parameters["id"]) % 2:
        made = client.post("/v1/streams", json={"model": "characters"}).json()
        case.path_parameters["id"] = made["id"]


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
