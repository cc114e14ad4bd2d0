"""How long streams live, whose they are, and how much of them there may be."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest
import redis
from openai import DefaultHttpxClient, OpenAI

from tests.server.conftest import Serve
from tests.server.hand_clock import HandClock
from tests.server.held_steps import Steps
from tests.server.http.json_requests import connect
from tests.server.keys import bearer
from tests.server.observing import until
from tests.server.streams.conftest import ACME, KEYS, OTHER, Replicas, key_of
from tests.server.streams.redis.generous_timing import GENEROUS
from tests.server.streams.replies import code, steps_done, text

TIMING = replace(GENEROUS, renew_seconds=0.05)


@pytest.fixture(scope="module", params=["memory", "redis"])
def leased(request: pytest.FixtureRequest, serve: Serve) -> Iterator[Replicas]:
    """One or two servers whose leases are renewed often."""
    clock = HandClock()
    settings: dict[str, Any] = {"state_keys": KEYS, "clock": clock, "timing": TIMING}
    if request.param == "memory":
        with serve("characters", **settings) as running:
            yield Replicas([running], "memory", clock)
        return
    settings["store"] = f"redis://127.0.0.1:{request.getfixturevalue('redis_port')}/1"
    with serve("characters", **settings) as one, serve("characters", **settings) as other:
        yield Replicas([one, other], "redis")


def expect(replicas: Replicas, stream: str, status: int, why: str) -> None:
    for reply in (replicas.get(stream), replicas.step(stream, 1, prompt="a")):
        assert (reply.status_code, code(reply)) == (status, why)


def test_an_idle_stream_expires_and_is_distinguished_from_an_unknown_one(
    replicas: Replicas,
) -> None:
    stream = replicas.create(idle_seconds=100)
    rows = replicas.rows
    assert replicas.step(stream, 1, prompt="a").status_code == 200
    replicas.pass_time(60)
    assert replicas.step(stream, 2, prompt="a").status_code == 200
    replicas.pass_time(60)
    assert replicas.step(stream, 3, prompt="a").status_code == 200  # a step put the end off
    replicas.pass_time(101)
    expect(replicas, stream, 410, "stream_expired")
    expect(replicas, "unknown", 404, "stream_unknown")
    assert replicas.delete(stream).status_code == 410
    until(lambda: replicas.rows <= rows)


def test_nobody_lives_longer_than_the_operator_allows(replicas: Replicas) -> None:
    stream = replicas.create(idle_seconds=10**9)
    assert replicas.get(stream).json()["idle_seconds"] == 1800


def test_running_and_queued_steps_keep_a_stream_alive(leased: Replicas, steps: Steps) -> None:
    stream = leased.create(idle_seconds=40)
    one, other = (
        leased.clients[0],
        leased.clients[-1],
    )  # what is queued at one server keeps its order
    path, computed = f"/v1/streams/{stream}/steps", steps_done(leased, "computed")
    waiting = [application.streams._leases._waiting for application in leased.applications]
    steps.hold()
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(one.post, path, json={"step": 1, "prompt": "To be"})]
        until(lambda: steps.waiting == 1)
        for number, body in enumerate(
            ({"step": 1, "prompt": "To be"}, {"step": 2, "prompt": ""}), 1
        ):
            running.append(pool.submit(other.post, path, json=body))
            until(lambda number=number: sum(each.used for each in waiting) == number)  # type: ignore[misc]
        for _ in range(4):  # each is less than a lease, all are more than it may be idle
            leased.pass_time(60)
            until(lambda: renewed(leased, stream))
        steps.go_on()
        first, again, second = (each.result() for each in running)
    assert first.content == again.content
    assert (first.status_code, second.status_code) == (200, 200)
    assert leased.get(stream).json()["step"] == 2  # while it still lives
    assert steps_done(leased, "computed") == computed + 2
    leased.pass_time(41)
    expect(leased, stream, 410, "stream_expired")


def renewed(replicas: Replicas, stream: str) -> bool:
    """Whether a lease that Redis has is as long as at first, but for a moment."""
    store = replicas.applications[0].settings.store
    if store is None:
        return True
    with redis.Redis.from_url(store.get_secret_value()) as client:
        return int(client.pttl(key_of(stream, "lease"))) > TIMING.lease_ms / 2


@pytest.mark.parametrize("streamed", [False, True])
def test_a_step_counts_once_if_its_client_leaves_in_the_middle(
    leased: Replicas, steps: Steps, streamed: bool
) -> None:
    stream = leased.create()
    computed = steps_done(leased, "computed")
    body = json.dumps({"step": 1, "prompt": "To be", "stream": streamed}).encode()
    path = f"/v1/streams/{stream}/steps"
    steps.hold()
    with connect(leased.clients[0], path, json.loads(body)):
        until(lambda: steps.waiting == 1)
    assert leased.get(stream).json()["step"] == 0
    steps.go_on()
    again = [leased.ask("POST", path, content=body).content for _ in range(2)]
    assert again[0] == again[1]
    assert again[0].endswith(b"data: [DONE]\n\n") == streamed
    assert steps_done(leased, "computed") == computed + 1


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
        step: Any = client.post(
            f"/streams/{stream}/steps", body={"step": 1, "prompt": "To be"}, cast_to=object
        )
    assert lost
    assert step["step"] == 1
    assert steps_done(replicas, "computed") == computed + 1
    assert steps_done(replicas, "repeated") == repeated + 1
    assert text(replicas.step(stream, 2, prompt=""))


@pytest.fixture(scope="module", params=["memory", "redis"])
def guarded(request: pytest.FixtureRequest, serve: Serve) -> Iterator[Replicas]:
    """Servers with two tenants: acme, whose streams may have three states, and other.

    A stream with two steps and one with one take about 8,840 bytes of memory or 6,570 of Redis, and
    one more step takes about 1,400 or 800.
    """
    max_bytes = {"memory": 9500, "redis": 7000}[request.param]
    keys = [
        {"tenant": "acme", "key": ACME, "state_bytes": max_bytes},
        {"tenant": "other", "key": OTHER},
    ]
    clock = HandClock()
    settings: dict[str, Any] = {"api_keys": json.dumps(keys), "state_keys": KEYS, "clock": clock}
    if request.param == "memory":
        with serve("characters", **settings) as running:
            yield Replicas([running], "memory", clock)
        return
    settings["store"] = f"redis://127.0.0.1:{request.getfixturevalue('redis_port')}/2"
    with serve("characters", **settings) as one, serve("characters", **settings) as two:
        yield Replicas([one, two], "redis")


def as_tenant(replicas: Replicas, key: str, method: str, path: str, **body: Any) -> httpx.Response:
    settings = {"json": body} if method == "POST" else {}
    return replicas.ask(method, f"/v1/streams{path}", headers=bearer(key), **settings)


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
    short = as_tenant(guarded, ACME, "POST", "", idle_seconds=100).json()["id"]
    for number in (1, 2, 3):
        assert step(short, number).status_code == 200
    guarded.pass_time(101)
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
