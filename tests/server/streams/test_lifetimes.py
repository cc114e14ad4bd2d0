"""How long streams live, whose they are, and how much of them there may be."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import DefaultHttpxClient, OpenAI

from sruserve.server.streams import redis_store
from tests.server.conftest import Serve
from tests.server.streams.conftest import ACME, KEYS, OTHER, Replicas
from tests.server.streams.test_streams import code, steps_done, text
from tests.server.test_tenants import bearer

SLOW: dict[str, Any] = {"prompt": "To be", "max_tokens": 1500, "temperature": 0}  # over a second


@pytest.fixture(scope="module", params=["memory", "redis"])
def slow(request: pytest.FixtureRequest, serve: Serve, large: Path) -> Iterator[Replicas]:
    """One or two servers of a slow model, whose leases are much shorter than its steps."""
    given: dict[str, Any] = {"model_folders": (large,), "state_keys": KEYS}
    if request.param == "memory":
        with serve(**given) as running:
            yield Replicas([running], "memory")
        return
    given["store"] = f"redis://127.0.0.1:{request.getfixturevalue('redis_port')}/1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_store, "_LEASE_MS", 300)
        patch.setattr(redis_store, "_RENEW_SECONDS", 0.1)
        with serve(**given) as one, serve(**given) as other:
            yield Replicas([one, other], "redis")


def expect(replicas: Replicas, stream: str, status: int, why: str) -> None:
    for reply in (replicas.get(stream), replicas.step(stream, 1, prompt="a")):
        assert (reply.status_code, code(reply)) == (status, why)


def test_an_idle_stream_expires_and_is_told_from_an_unknown_one(replicas: Replicas) -> None:
    stream = replicas.create(idle_seconds=2)
    rows = replicas.rows
    assert replicas.step(stream, 1, prompt="a").status_code == 200
    time.sleep(1)
    assert replicas.step(stream, 2, prompt="a").status_code == 200
    time.sleep(1.2)
    assert replicas.step(stream, 3, prompt="a").status_code == 200  # a step put the end off
    time.sleep(2.1)
    expect(replicas, stream, 410, "stream_expired")
    expect(replicas, "unknown", 404, "stream_unknown")
    assert replicas.delete(stream).status_code == 410
    deadline = time.monotonic() + 5
    while replicas.rows > rows and time.monotonic() < deadline:
        time.sleep(0.01)
    assert replicas.rows <= rows


def test_nobody_lives_longer_than_the_operator_allows(replicas: Replicas) -> None:
    stream = replicas.create(idle_seconds=10**9)
    assert replicas.get(stream).json()["idle_seconds"] == 1800


def test_running_and_queued_steps_keep_a_stream_alive(slow: Replicas) -> None:
    stream = slow.create("large", idle_seconds=1)
    begin = time.monotonic()
    one, other = slow.clients[0], slow.clients[-1]  # what is queued at one server keeps its order
    path = f"/v1/streams/{stream}/steps"
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(one.post, path, json={"step": 1, **SLOW})]
        time.sleep(0.1)
        running.append(pool.submit(other.post, path, json={"step": 1, **SLOW}))
        time.sleep(0.1)
        queued = pool.submit(other.post, path, json={"step": 2, "prompt": "", "max_tokens": 1})
        replies = [each.result() for each in running]
    assert time.monotonic() - begin > 1.1, "the step was too short to tell"
    assert replies[0].content == replies[1].content
    assert queued.result().status_code == 200
    assert slow.get(stream).json()["step"] == 2  # while it still lives
    assert steps_done(slow, "computed", "large") >= 2
    time.sleep(1.2)
    expect(slow, stream, 410, "stream_expired")


@pytest.mark.parametrize("streamed", [False, True])
def test_a_step_counts_once_if_its_client_leaves_in_the_middle(
    slow: Replicas, streamed: bool
) -> None:
    stream = slow.create("large")
    computed = steps_done(slow, "computed", "large")
    body = json.dumps({"step": 1, **SLOW, "max_tokens": 400, "stream": streamed}).encode()
    url = slow.clients[0].base_url
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(
            b"POST /v1/streams/%b/steps HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
            % (stream.encode(), len(body), body)
        )
        time.sleep(0.1)
    assert slow.get(stream).json()["step"] == 0, "the step was too short to tell"
    path = f"/v1/streams/{stream}/steps"
    again = [slow.ask("POST", path, content=body).content for _ in range(2)]
    assert again[0] == again[1]
    assert again[0].endswith(b"data: [DONE]\n\n") == streamed
    assert steps_done(slow, "computed", "large") == computed + 1


def test_a_retry_of_the_openai_client_repeats_nothing(replicas: Replicas) -> None:
    """Its first reply is lost on the way; the client sends the step again by itself."""
    stream = replicas.create()
    computed, repeated = steps_done(replicas, "computed"), steps_done(replicas, "repeated")
    lost: list[Any] = []

    def lose_first(reply: Any) -> None:
        if not lost:
            lost.append(reply)
            raise httpx.ReadError("the connection broke")

    url = str(replicas.clients[0].base_url)
    http = DefaultHttpxClient(event_hooks={"response": [lose_first]})
    with OpenAI(base_url=f"{url}/v1", api_key="none", http_client=http) as client:
        told: Any = client.post(
            f"/streams/{stream}/steps", body={"step": 1, "prompt": "To be"}, cast_to=object
        )
    assert lost
    assert told["step"] == 1
    assert steps_done(replicas, "computed") == computed + 1
    assert steps_done(replicas, "repeated") == repeated + 1
    assert text(replicas.step(stream, 2, prompt=""))


@pytest.fixture(scope="module", params=["memory", "redis"])
def guarded(request: pytest.FixtureRequest, serve: Serve) -> Iterator[Replicas]:
    """Servers with two tenants: acme, whose streams may have three states, and other.

    A stream with two steps and one with one take about 8,840 bytes of memory or 6,570 of Redis, and
    one more step takes about 1,400 or 800.
    """
    most = {"memory": 9500, "redis": 7000}[request.param]
    keys = [{"tenant": "acme", "key": ACME, "state_bytes": most}, {"tenant": "other", "key": OTHER}]
    given: dict[str, Any] = {"api_keys": json.dumps(keys), "state_keys": KEYS}
    if request.param == "memory":
        with serve("characters", **given) as running:
            yield Replicas([running], "memory")
        return
    given["store"] = f"redis://127.0.0.1:{request.getfixturevalue('redis_port')}/2"
    with serve("characters", **given) as one, serve("characters", **given) as two:
        yield Replicas([one, two], "redis")


def as_tenant(replicas: Replicas, key: str, method: str, path: str, **body: Any) -> httpx.Response:
    given = {"json": body} if method == "POST" else {}
    return replicas.ask(method, f"/v1/streams{path}", headers=bearer(key), **given)


def test_another_tenants_stream_is_an_unknown_one(guarded: Replicas) -> None:
    stream = as_tenant(guarded, OTHER, "POST", "").json()["id"]
    for method, path, body in (
        ("GET", "", {}),
        ("GET", "/state", {}),
        ("POST", "/steps", {"step": 1, "prompt": "a"}),
        ("POST", "/fork", {}),
        ("POST", "/rewind", {"step": 0}),
        ("DELETE", "", {}),
    ):
        reply = as_tenant(guarded, ACME, method, f"/{stream}{path}", **body)
        assert (reply.status_code, code(reply)) == (404, "stream_unknown")
        assert guarded.ask(method, f"/v1/streams/{stream}{path}").status_code == 401
    assert as_tenant(guarded, OTHER, "GET", f"/{stream}").status_code == 200


def test_a_tenants_states_are_bounded_over_all_servers(guarded: Replicas) -> None:
    def step(stream: str, number: int) -> httpx.Response:
        body = {"step": number, "prompt": "a", "max_tokens": 1}
        return as_tenant(guarded, ACME, "POST", f"/{stream}/steps", **body)

    models = guarded.ask("GET", "/v1/models", headers=bearer(ACME)).json()
    assert models["data"][0]["state_bytes"] == 192
    one, two = (as_tenant(guarded, ACME, "POST", "").json()["id"] for _ in range(2))
    for stream, number in ((one, 1), (two, 1), (one, 2)):
        assert step(stream, number).status_code == 200
    full = step(two, 2)
    assert (full.status_code, code(full)) == (429, "state_quota_exceeded")
    assert full.headers["x-should-retry"] == "false"
    assert as_tenant(guarded, ACME, "DELETE", f"/{one}").status_code == 200
    assert step(two, 2).status_code == 200
    free = as_tenant(guarded, OTHER, "POST", "").json()["id"]
    assert as_tenant(guarded, OTHER, "POST", f"/{free}/steps", step=1, prompt="a").is_success
    assert as_tenant(guarded, ACME, "DELETE", f"/{two}").status_code == 200
    short = as_tenant(guarded, ACME, "POST", "", idle_seconds=1).json()["id"]
    for number in (1, 2, 3):
        assert step(short, number).status_code == 200
    time.sleep(1.1)
    last = as_tenant(guarded, ACME, "POST", "").json()["id"]
    for number in (1, 2, 3):
        assert step(last, number).status_code == 200, "an expired stream still counts"
    assert as_tenant(guarded, ACME, "DELETE", f"/{last}").status_code == 200


def test_streams_that_do_not_fit_into_memory_are_refused(serve: Serve) -> None:
    with serve("characters", stream_bytes=8400) as running:
        replicas = Replicas([running], "memory")
        streams = []
        while (reply := replicas.ask("POST", "/v1/streams", json={})).status_code == 201:
            streams.append(reply.json()["id"])
        assert (reply.status_code, code(reply)) == (429, "overloaded")
        assert len(streams) == 4
        assert code(replicas.step(streams[0], 1, prompt="a")) == "overloaded"
        replicas.delete(streams[1])
        assert replicas.step(streams[0], 1, prompt="a").status_code == 200


def test_a_reply_that_is_too_long_to_store_is_no_step(serve: Serve) -> None:
    with serve("characters", max_body_bytes=2000) as running:
        replicas = Replicas([running], "memory")
        stream = replicas.create()
        long = replicas.step(stream, 1, prompt="a", max_tokens=3000)
        assert (long.status_code, code(long)) == (422, "input_too_long")
        assert replicas.get(stream).json()["step"] == 0
        assert replicas.step(stream, 1, prompt="a", max_tokens=10).status_code == 200


def test_several_workers_without_a_store_hold_no_streams(serve: Serve) -> None:
    with serve("characters", workers=2) as running:
        replicas = Replicas([running], "none")
        for reply in (
            replicas.ask("POST", "/v1/streams", json={}),
            replicas.get("x"),
            replicas.step("x", 1, prompt="a"),
        ):
            assert (reply.status_code, code(reply)) == (501, "streams_need_redis")
            assert reply.headers["x-should-retry"] == "false"
            assert "SRUSERVE_STORE" in reply.json()["error"]["message"]
        assert running[0].post("/v1/completions", json={"prompt": "a"}).status_code == 200
