"""Pages in browsers: those of this server and of allowed origins may send requests, no others."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from websockets.exceptions import InvalidStatus

from sruserve.server.http.errors import OriginNotAllowed
from sruserve.server.http.origins import Origins
from tests.server.conftest import Serve
from tests.server.http.json_requests import connect
from tests.server.http.raw_replies import next_reply, send
from tests.server.posting import CLASSIFY, COMPLETE, refusal
from tests.server.websocket.sockets import SECONDS, open_socket

APP = "https://app.example.com"
BODY = json.dumps({"model": "question", "input": "a"})
BINARY = {
    "inputs": [{"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}],
    "parameters": {"binary_data_output": True},
}
MODELS = ("question", "characters")
LOAD = "/v2/repository/models/question/load"


@pytest.fixture(scope="module")
def open_one(serve: Serve) -> Iterator[httpx.Client]:
    """A server that has allowed a page, and whose models may be loaded."""
    allowed = f"{APP}, http://other.example:8080/"
    with serve(*MODELS, allowed_origins=allowed, model_control=True) as (client, _):
        yield client


def test_a_program_has_no_origin_and_may_call_the_server_by_any_name(client: httpx.Client) -> None:
    for host in ("sruserve:8000", "models.example.com", "10.0.0.7"):
        assert client.post(CLASSIFY, content=BODY, headers={"host": host}).status_code == 200


@pytest.mark.parametrize("kind", ["application/json", "text/plain", None])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://[not"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "http://evil.example:8000", "host": "evil.example:8000"},
    ],
    ids=["another site", "a file", "another port", "no origin at all", "a form", "rebinding"],
)
def test_a_page_of_another_origin_is_refused(
    client: httpx.Client, headers: dict[str, str], kind: str | None
) -> None:
    headers = headers | ({"content-type": kind} if kind else {})
    for path in (CLASSIFY, "/v1/streams", LOAD, "/predict"):
        reply = client.post(path, content=BODY, headers=headers)
        assert "SRUSERVE_ALLOWED_ORIGINS" in refusal(reply, 403, "origin_not_allowed")
        assert "access-control-allow-origin" not in reply.headers


def test_a_page_of_this_server_may_do_everything(client: httpx.Client) -> None:
    port = client.base_url.port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", "a.localhost"):
        headers = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
        assert client.post(CLASSIFY, content=BODY, headers=headers).status_code == 200


def test_a_link_from_another_site_opens_the_documentation(client: httpx.Client) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/docs", headers=headers).status_code == 200


@pytest.mark.parametrize("origin", [APP, "http://other.example:8080"])
def test_an_allowed_page_sends_requests_and_reads_replies(
    open_one: httpx.Client, origin: str
) -> None:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    reply = open_one.options(CLASSIFY, headers=headers)
    assert reply.status_code == 204
    assert reply.headers["access-control-allow-origin"] == origin
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert reply.headers["access-control-allow-headers"] == "authorization,content-type"
    for path, status in ((CLASSIFY, 200), ("/v1/score", 422), ("/nothing", 404)):
        reply = open_one.post(path, content=BODY, headers={"origin": origin})
        assert reply.status_code == status
        assert reply.headers["access-control-allow-origin"] == origin
        assert reply.headers["vary"] == "origin"
    evil = {"origin": "https://evil.example"}
    refusal(open_one.post(CLASSIFY, content=BODY, headers=evil), 403, "origin_not_allowed")
    refusal(open_one.options(CLASSIFY, headers=headers | evil), 403, "origin_not_allowed")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (CLASSIFY, {"model": "question", "input": "a"}, 200),
        (CLASSIFY, {"model": "question"}, 422),
        (COMPLETE, {"model": "characters", "prompt": "a", "max_tokens": 2, "stream": True}, 200),
        ("/v1/streams", {"model": "question"}, 201),
        ("/predict", {"inputs": "a"}, 200),
        ("/v2/models/question/infer", BINARY, 200),
        ("/nothing", {}, 404),
    ],
)
def test_an_allowed_page_reads_every_useful_header_of_every_reply(
    open_one: httpx.Client, path: str, body: object, status: int
) -> None:
    reply = open_one.post(path, json=body, headers={"origin": APP})
    assert reply.status_code == status
    assert reply.headers.get_list("access-control-allow-origin") == [APP]
    assert reply.headers["vary"] == "origin"
    assert "access-control-allow-credentials" not in reply.headers
    exposed = reply.headers["access-control-expose-headers"].split(", ")
    safe = ["cache-control", "content-type", "content-length"]  # which pages may always read
    own = ["vary", "date", "server", "connection", "transfer-encoding", "x-accel-buffering"]
    others = [name for name in reply.headers if not name.startswith("access-control-")]
    assert set(others) <= {*exposed, *safe, *own}


def test_an_allowed_page_reads_when_to_retry(serve: Serve) -> None:
    keys = json.dumps([{"key": "secret-key", "requests_per_second": 0.01}])
    with serve("question", allowed_origins=APP, api_keys=SecretStr(keys)) as (client, _):
        headers = {"origin": APP, "authorization": "Bearer secret-key"}
        client.post(CLASSIFY, content=BODY, headers=headers)
        reply = client.post(CLASSIFY, content=BODY, headers=headers)
        assert reply.status_code == 429
        exposed = reply.headers["access-control-expose-headers"].split(", ")
        assert {"retry-after", "x-request-id"} <= {*exposed} & {*reply.headers}


def test_a_preflight_needs_no_key_and_a_refused_page_can_read_why(serve: Serve) -> None:
    with serve("question", allowed_origins=APP, api_keys=SecretStr("secret-key")) as (client, _):
        headers = {"origin": APP, "access-control-request-method": "POST"}
        assert client.options(CLASSIFY, headers=headers).status_code == 204
        reply = client.post(CLASSIFY, content=BODY, headers={"origin": APP})
        assert reply.status_code == 401
        assert reply.headers["access-control-allow-origin"] == APP


def test_a_reply_to_a_program_or_an_own_page_says_nothing_of_origins(
    open_one: httpx.Client,
) -> None:
    own = str(open_one.base_url).rstrip("/")
    for headers in ({}, {"origin": own}):
        reply = open_one.post(CLASSIFY, content=BODY, headers=headers)
        assert reply.status_code == 200
        assert not [name for name in reply.headers if name.startswith("access-control-")]
        assert "vary" not in reply.headers


@pytest.mark.parametrize(("origin", "enters"), [(APP, True), ("https://evil.example", False)])
def test_only_an_allowed_page_opens_a_socket(
    open_one: httpx.Client, origin: str, enters: bool
) -> None:
    if enters:
        with open_socket(open_one, additional_headers={"origin": origin}) as socket:
            socket.send('{"model":"question","input":"a"}')
            assert "label" in socket.recv(SECONDS)
        return
    with pytest.raises(InvalidStatus) as refused:
        open_socket(open_one, additional_headers={"origin": origin})
    assert refused.value.response.status_code == 403
    body = json.loads(refused.value.response.body or b"{}")
    assert body["error"]["code"] == "origin_not_allowed"


def request(headers: list[tuple[bytes, bytes]], scheme: str = "http") -> dict[str, Any]:
    return {"type": "http", "scheme": scheme, "method": "POST", "headers": headers}


@pytest.mark.parametrize("scheme", ["https", "wss"])
def test_a_page_without_tls_is_no_page_of_a_server_with_tls(scheme: str) -> None:
    own = [(b"host", b"127.0.0.1"), (b"origin", b"https://127.0.0.1")]
    assert Origins().check(request(own, scheme)) is None
    with pytest.raises(OriginNotAllowed):
        Origins().check(request([own[0], (b"origin", b"http://127.0.0.1")], scheme))


@pytest.mark.parametrize("site", [b"cross-site", b"same-site", b"none"])
def test_a_page_is_foreign_if_its_browser_says_so(site: bytes) -> None:
    """A proxy that ends TLS hides that a page of the same name came without it."""
    headers = [(b"host", b"127.0.0.1"), (b"origin", b"http://127.0.0.1")]
    assert Origins().check(request([*headers, (b"sec-fetch-site", b"same-origin")])) is None
    with pytest.raises(OriginNotAllowed):
        Origins().check(request([*headers, (b"sec-fetch-site", site)]))


def test_every_origin_can_be_allowed() -> None:
    scope = request([(b"origin", b"https://any.example")])
    assert Origins(["*"]).check(scope) == "https://any.example"
    with pytest.raises(OriginNotAllowed):
        Origins().check(scope)


@pytest.mark.parametrize(
    "headers",
    [
        [
            (b"host", b"127.0.0.1"),
            (b"origin", b"http://evil.com"),
            (b"origin", b"http://127.0.0.1"),
        ],
        [(b"host", b"evil@127.0.0.1"), (b"origin", b"http://evil@127.0.0.1")],
        [(b"host", 300 * b"a" + b".localhost"), (b"origin", b"http://%b.localhost" % (300 * b"a"))],
        [(b"host", b"\xbd.localhost"), (b"origin", b"http://\xbd.localhost")],
    ],
    ids=["two origins", "a user's name", "a long name", "a name that is not ASCII"],
)
def test_an_odd_origin_is_refused(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(OriginNotAllowed):
        Origins().check(request(headers))


def test_the_configured_host_is_this_server() -> None:
    headers = [(b"host", b"Models.example:80"), (b"origin", b"https://models.example:80")]
    scope = request(headers)
    assert Origins(host="models.example").check(scope) is None
    twice = scope | {"headers": [*headers, headers[0]]}
    with pytest.raises(OriginNotAllowed):
        Origins(host="models.example").check(twice)


@pytest.mark.parametrize(
    ("kind", "status"),
    [("text/plain", 415), ("application/x-www-form-urlencoded", 415),
     ("multipart/form-data; boundary=x", 415), ("application/json; charset=utf-8", 200),
     (None, 200)],
)  # fmt: skip
def test_models_are_not_loaded_by_what_a_form_can_send(
    open_one: httpx.Client, kind: str | None, status: int
) -> None:
    reply = open_one.post(LOAD, content=b"{}", headers={"content-type": kind} if kind else {})
    assert reply.status_code == status, reply.text
    if status != 200:
        assert "application/json" in reply.json()["error"]


def answer(client: httpx.Client, request: bytes) -> bytes:
    with connect(client, "/v1/score", {"model": "characters", "input": "a"}) as connection:
        connection.settimeout(SECONDS)
        next_reply(connection)
        send(connection, request)
        return next_reply(connection)


@pytest.mark.parametrize(
    "hosts", ["", "host: a\r\nhost: a\r\n", "host: a\r\nHost: b\r\n"], ids=["none", "twice", "two"]
)
@pytest.mark.parametrize("more", ["", "upgrade: websocket\r\nconnection: upgrade\r\n"])
def test_a_request_has_one_host(client: httpx.Client, hosts: str, more: str) -> None:
    reply = answer(client, f"GET /livez HTTP/1.1\r\n{hosts}{more}\r\n".encode())
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert b"one Host header" in reply


@pytest.mark.parametrize("version", ["0.9", "2.0"])
def test_other_versions_of_http_are_refused(client: httpx.Client, version: str) -> None:
    reply = answer(client, f"GET /livez HTTP/{version}\r\nhost: a\r\n\r\n".encode())
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert b"speaks HTTP/1.1" in reply


@pytest.mark.parametrize("target", ["/livez#a", "/livez?a#", "/v1/score#/../metrics", "#"])
def test_a_fragment_in_a_target_is_refused(client: httpx.Client, target: str) -> None:
    reply = answer(client, f"GET {target} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
    assert reply.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("coding", ["gzip, chunked", "gzip", "chunked, chunked"])
def test_other_transfer_encodings_are_refused(client: httpx.Client, coding: str) -> None:
    reply = answer(
        client,
        f"POST /v1/score HTTP/1.1\r\nhost: a\r\ntransfer-encoding: {coding}\r\n\r\n".encode(),
    )
    assert reply.startswith(b"HTTP/1.1 400 ")


def test_http_1_0_needs_no_host(client: httpx.Client) -> None:
    assert answer(client, b"GET /livez HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "framing",
    ["content-length: 2\r\ncontent-length: 2\r\n", "content-length: 2\r\ncontent-length: 3\r\n",
     f"content-length: {5000 * '0'}2\r\n", f"content-length: {19 * '0'}2\r\n",
     "content-length: 2, 2\r\n", "content-length: +2\r\n", "content-length: 0x2\r\n",
     "content-length: 2\r\ntransfer-encoding: chunked\r\n",
     "transfer-encoding: chunked\r\ncontent-length: 2\r\n",
     "transfer-encoding: chunked, identity\r\n", "transfer-encoding: xchunked\r\n",
     "content-length : 2\r\n", " content-length: 2\r\n"],
)  # fmt: skip
def test_a_body_has_one_length(client: httpx.Client, framing: str) -> None:
    reply = answer(client, f"POST /v1/score HTTP/1.1\r\nhost: x\r\n{framing}\r\n{{}}".encode())
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert reply.count(b"HTTP/1.1") == 1
