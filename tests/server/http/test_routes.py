"""Every request gets to the route of its method and path, or learns why there is none."""

import asyncio
from contextlib import nullcontext
from typing import Any

import httpx
import pytest

from sruserve.server.app import ROUTES, Application
from sruserve.server.errors import EngineFailure, InvalidRequest, ServeError
from sruserve.server.http.call import HttpCall
from sruserve.server.http.observed import answering_errors
from sruserve.server.http.router import Router
from sruserve.server.http.routes import Reply, Route
from tests.server.http.raw_replies import all_replies
from tests.server.http.raw_requests import connect

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
PATHS = {
    path: [method for route in ROUTES if route.path == path for method in route.methods]
    for path in dict.fromkeys(route.path for route in ROUTES)
}


def test_every_route_of_the_tables_is_mounted(application: Application) -> None:
    mounted = application.router.routes
    assert len(mounted) == len(ROUTES)
    assert set(mounted) == set(ROUTES)


@pytest.mark.parametrize("path", PATHS)
def test_other_methods_get_405_with_all_methods_of_the_path(
    client: httpx.Client, path: str
) -> None:
    for method in {*METHODS} - {*PATHS[path]}:
        values = {"id": "a", "model": "b", "version": "c", "name": "d", "file": "e"}
        reply = client.request(method, path.format(**values))
        assert reply.status_code == 405, (method, path)
        assert reply.headers["allow"] == ", ".join(PATHS[path])


@pytest.mark.parametrize("path", [path for path in PATHS if "GET" in PATHS[path]])
def test_head_gets_the_head_of_what_get_gets_and_nothing_after_it(
    client: httpx.Client, path: str
) -> None:
    values = {"id": "a", "model": "question", "version": "1", "name": "start.js", "file": "app.js"}
    path = path.format(**values)
    whole = client.get(path, headers={"accept-encoding": "identity"})
    request = f"HEAD {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
    with connect(client, request) as connection:
        head, _, rest = all_replies(connection).partition(b"\r\n\r\n")
    status, *headers = head.lower().split(b"\r\n")
    assert int(status.split()[1]) == whole.status_code
    assert f"content-type: {whole.headers['content-type']}".encode().lower() in headers
    if path not in ("/metrics", "/v2/models/stats"):  # their numbers change
        assert f"content-length: {whole.headers['content-length']}".encode() in headers
    assert not rest


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "path",
    [
        "/absent",
        "/v1",
        "/v1/",
        "/v1/classify/",
        "/v1/models/a/b",
        "/v1/streams/",
        "/v1/streams/a/b",
        "/v2/",
        "/v2/absent",
        "/v2/models",
        "/v2/models//infer",
        "/v2/models/question/absent",
        "/v2/repository",
        "/v2/health/absent",
        "/v2x",
    ],
)
def test_an_unknown_path_is_404_for_every_method(
    client: httpx.Client, method: str, path: str
) -> None:
    assert client.request(method, path).status_code == 404


def test_what_triton_has_beyond_this_server_is_unsupported(client: httpx.Client) -> None:
    for path in ("/v2/logging", "/v2/models/question/trace/setting", "/v2/cudasharedmemory/status"):
        for method in ("GET", "POST"):
            assert client.request(method, path).status_code == 501


def ask(
    *routes: tuple[Route[Any], Any], method: str = "GET", path: str, as_pages: bool = False
) -> httpx.Response:
    """The reply of a router of these routes, or of these pages."""
    fast, pages = ((), routes) if as_pages else (routes, ())
    transport = httpx.ASGITransport(Router(fast, nullcontext(), pages))

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.request(method, path)

    return asyncio.run(send())


def route(path: str, method: str = "GET") -> Route[None]:
    return Route(method, path, None, "name", "tag", (Reply(),))


async def say_values(call: HttpCall) -> None:
    await call.reply(repr(call.path_values).encode())


async def say_fixed(call: HttpCall) -> None:
    await call.reply(b"fixed")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/a/fixed", "fixed"),
        ("/a/b", "('b',)"),
        ("/a/fixed/c", "('fixed',)"),
        ("/a/b%0Ac", repr(("b\nc",))),
        ("/x.y", "()"),
        ("/", "()"),
    ],
)
def test_a_fixed_path_goes_before_one_with_a_parameter(path: str, body: str) -> None:
    routes = [
        *((route(each), say_values) for each in ("/a/{one}", "/a/{one}/c", "/x.y", "/")),
        (route("/a/fixed"), say_fixed),
    ]
    assert ask(*routes, path=path).text == body
    assert ask(*routes, path="/xay").status_code == 404


def test_pages_are_found_by_path_and_method() -> None:
    pages = [(route("/a/{one}"), say_values), (route("/a/{one}", "DELETE"), say_fixed)]
    assert ask(*pages, path="/a/b", as_pages=True).text == "('b',)"
    assert ask(*pages, path="/a/b", method="DELETE", as_pages=True).text == "fixed"
    refused = ask(*pages, path="/a/b", method="PUT", as_pages=True)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, DELETE")
    assert ask(*pages, path="/a/", as_pages=True).status_code == 404
    assert ask((route("/a"), say_fixed), path="/a%0A", as_pages=True).status_code == 404


def test_the_fastapi_application_describes_the_whole_server(
    client: httpx.Client, application: Application
) -> None:
    assert application.router.slow.openapi() == client.get("/openapi.json").json()


def test_two_routes_of_one_path_and_method_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match="GET /a is mounted twice"):
        Router([(route("/a"), say_fixed)] * 2, nullcontext())


def test_an_error_without_a_class_of_its_own_is_an_internal_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(call: HttpCall) -> None:
        raise LookupError("a secret")

    reply = ask((route("/a"), answering_errors(fail)), path="/a")
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in reply.text
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    ("error", "status", "count"),
    [
        (InvalidRequest("no"), 422, 0),
        (InvalidRequest("no"), 400, 1),
        (EngineFailure("no"), 500, 0),
        (ServeError("no"), 500, 1),
    ],
)
def test_an_error_that_a_route_does_not_declare_is_seen(
    error: ServeError, status: int, count: int, undeclared: list[str]
) -> None:
    async def refuse(call: HttpCall) -> None:
        await call.refuse_as(error, status, b"{}")

    ask((route("/v1/score", "POST"), refuse), method="POST", path="/v1/score")
    assert len(undeclared) == count
    undeclared.clear()  # this test is not to fail
