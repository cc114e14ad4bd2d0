"""Streams in Redis outlive servers, and servers outlive Redis."""

import json
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from hashlib import sha1
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from sruserve.server.settings import SettingsError, load_settings
from sruserve.server.streams.redis import scripts
from sruserve.server.streams.redis.client import Call, RedisClient
from tests.server.conftest import Serve
from tests.server.held_steps import Steps
from tests.server.keys import bearer
from tests.server.observing import until
from tests.server.processes import serving
from tests.server.streams.conftest import ACME, KEYS, Replicas, StartRedis, key_of, wait_briefly
from tests.server.streams.redis.generous_timing import GENEROUS
from tests.server.streams.redis.proxies import BeforeRedis
from tests.server.streams.replies import code, text


def test_a_restart_of_every_server_loses_nothing(serve: Serve, redis_port: int) -> None:
    settings: dict[str, Any] = {"state_keys": KEYS, "store": f"redis://127.0.0.1:{redis_port}/3"}
    body = {"model": "characters", "prompt": "To be", "max_tokens": 30, "seed": 5}
    with serve("characters", **settings) as running:
        whole = text(running[0].post("/v1/completions", json=body))
        before = Replicas([running], "redis")
        stream = before.create()
        first = before.step(stream, 1, prompt="To be", max_tokens=10, seed=5)
    with serve("characters", **settings) as running:
        after = Replicas([running], "redis")
        assert after.step(stream, 1, prompt="To be", max_tokens=10, seed=5).content == first.content
        assert text(first) + text(after.step(stream, 2, prompt="", max_tokens=20)) == whole
        assert after.post(stream, "rewind", step=1).json()["next_step"] == 2
        assert text(first) + text(after.step(stream, 2, prompt="", max_tokens=20)) == whole


def test_a_step_whose_server_is_killed_is_done_by_another_and_says_the_same(
    serve: Serve, redis_port: int, folders: Path
) -> None:
    """The one that is killed commits nothing: what it sends for that never gets to Redis."""
    proxy = BeforeRedis(redis_port, withheld=sha1(scripts.COMMIT.encode()).hexdigest().encode())
    body = {"step": 1, "prompt": "To be", "max_tokens": 40, "stream": True}
    settings: dict[str, Any] = {"state_keys": KEYS}
    with (
        closing(proxy),
        serve("characters", store=f"redis://127.0.0.1:{redis_port}/4", **settings) as running,
        serving(folders / "characters", store=f"redis://127.0.0.1:{proxy.port}/4", **settings) as (
            client,
            process,
        ),
    ):
        other = Replicas([running], "redis")
        stream = other.create()
        path, seen = f"/v1/streams/{stream}/steps", ""
        with suppress(httpx.TransportError), client.stream("POST", path, json=body) as reply:
            for part in reply.iter_text():
                seen += part
                if _text_of(seen):
                    process.kill()
        assert "[DONE]" not in seen
        again = other.ask("POST", path, json=body).text
        assert again.endswith("data: [DONE]\n\n")
        assert len(_text_of(seen)) > 0
        assert _text_of(again).startswith(_text_of(seen))
        assert other.get(stream).json()["step"] == 1


def test_a_server_that_has_lost_its_lease_changes_nothing(
    serve: Serve, redis_port: int, steps: Steps
) -> None:
    store = f"redis://127.0.0.1:{redis_port}/7"
    with serve("characters", state_keys=KEYS, store=store) as running:
        replicas = Replicas([running], "redis")
        stream = replicas.create()
        with ThreadPoolExecutor(1) as pool, redis.Redis(port=redis_port, db=7) as client:
            steps.hold()
            pending = pool.submit(replicas.step, stream, 1, prompt="To be")
            until(lambda: steps.waiting == 1)
            client.set(key_of(stream, "lease"), "another server", px=3000)
            client.hset(key_of(stream), "by", "another server")
            steps.go_on()
            lost = pending.result()
        assert (lost.status_code, code(lost)) == (503, "store_unavailable")
        assert replicas.get(stream).json()["step"] == 0
        assert replicas.step(stream, 1, prompt="To be", max_tokens=1).status_code == 200


def _text_of(events: str) -> str:
    """The text in those events that are whole."""
    whole = [line for line in events.split("\n") if line.startswith("data: {")]
    chunks = [json.loads(line[6:]) for line in whole if line.rstrip().endswith("}")]
    return "".join(each["choices"][0]["text"] for each in chunks)


def test_without_redis_streams_are_503_at_once_and_all_else_continues(
    own_redis: tuple[Replicas, Any, int], start_redis: StartRedis
) -> None:
    replicas, program, port = own_redis
    stream = replicas.create()
    assert replicas.step(stream, 1, prompt="a").status_code == 200
    program.send_signal(signal.SIGSTOP)  # it takes connections, and answers nothing
    with wait_briefly(replicas):
        hanging = replicas.get(stream)
    assert (hanging.status_code, code(hanging)) == (503, "store_unavailable")
    assert replicas.ask("POST", "/v1/completions", json={"prompt": "a"}).status_code == 200
    program.send_signal(signal.SIGCONT)
    assert replicas.step(stream, 2, prompt="a").status_code == 200
    program.kill()
    program.wait()
    for reply in (
        replicas.ask("POST", "/v1/streams", json={}),
        replicas.get(stream),
        replicas.step(stream, 3, prompt="a"),
        replicas.delete(stream),
    ):
        assert (reply.status_code, code(reply)) == (503, "store_unavailable")
        assert reply.headers["retry-after"] == "1"
    assert replicas.ask("POST", "/v1/completions", json={"prompt": "a"}).status_code == 200
    assert replicas.ask("GET", "/readyz").status_code == 200
    with start_redis(port):
        assert replicas.get(stream).status_code == 404  # this Redis writes nothing to disk
        assert replicas.step(replicas.create(), 1, prompt="a").status_code == 200


def test_nothing_stays_in_redis_for_ever_and_neither_states_nor_replies_can_be_read_there(
    own_redis: tuple[Replicas, Any, int],
) -> None:
    replicas, _, port = own_redis
    stream = replicas.create(idle_seconds=60)
    replicas.step(stream, 1, prompt="To be")
    (fork,) = replicas.post(stream, "fork").json()["data"]
    with redis.Redis(port=port) as client:
        keys = client.keys()
        assert len(keys) >= 4
        for key in keys:
            assert 0 < client.ttl(key) <= 2 * GENEROUS.lease_ms / 1000 + 25 * 3600
        fields: Any = client.hgetall(
            next(key for key in keys if stream.encode() in key and b":stream:" in key)
        )
        assert len(fields[b"state1"]) > 192
        state = fields[b"state1"].decode()
        assert len(fields[b"reply"]) > 192
        assert b"choices" not in fields[b"reply"]
        for each in (stream, fork["id"]):
            replicas.delete(each)
        left = client.keys(f"*{stream}*")
        assert left == []
        assert client.get("sruserve:sum:" + "0" * 32) == b"0"
    # what lies there is a token of this server, and none that other keys open
    assert replicas.create(state=state)


def test_a_stream_that_redis_does_not_take_is_no_step(
    own_redis: tuple[Replicas, Any, int],
) -> None:
    replicas, _, port = own_redis
    stream = replicas.create()
    with redis.Redis(port=port) as client:
        client.config_set("maxmemory", "1")
        full = replicas.step(stream, 1, prompt="a")
        assert (full.status_code, code(full)) == (503, "store_unavailable")
        client.config_set("maxmemory", "0")
    assert replicas.get(stream).json()["step"] == 0
    assert replicas.step(stream, 1, prompt="a").status_code == 200


def test_forks_beyond_the_quota_are_none_at_all(serve: Serve, redis_port: int) -> None:
    keys = json.dumps([{"tenant": "acme", "key": ACME, "state_bytes": 16_800}])
    store = f"redis://127.0.0.1:{redis_port}/5"
    with serve("characters", state_keys=KEYS, store=store, api_keys=keys) as (client, application):
        client.headers.update(bearer(ACME))
        replicas = Replicas([(client, application)], "redis")
        stream = replicas.create()
        replicas.step(stream, 1, prompt="a")
        for _ in range(3):  # one of 3,200 bytes is there, and five of 2,500 fit beside it
            full = replicas.post(stream, "fork", n=6)
            assert (full.status_code, code(full)) == (429, "state_quota_exceeded")
        assert replicas.post(stream, "fork", n=5).status_code == 201


def test_forks_go_to_redis_a_few_in_one_message(
    serve: Serve, redis_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []
    run_together = RedisClient.run_each

    async def count(
        link: RedisClient, script: str, owner: bytes, calls: Sequence[Call], **kind: bool
    ) -> list[Any]:
        if script == scripts.ADD:
            together.append(len(calls))
        return await run_together(link, script, owner, calls, **kind)

    monkeypatch.setattr(RedisClient, "run_each", count)
    keys = json.dumps([{"tenant": "acme", "key": ACME, "state_bytes": 245_000}])
    store = f"redis://127.0.0.1:{redis_port}/5"
    with serve("characters", state_keys=KEYS, store=store, api_keys=keys) as (client, application):
        client.headers.update(bearer(ACME))
        replicas = Replicas([(client, application)], "redis")
        stream = replicas.create()
        replicas.step(stream, 1, prompt="a")
        together.clear()
        forks = replicas.post(stream, "fork", n=70).json()["data"]
        assert together == [8] * 8 + [6]
        texts = {text(replicas.step(each["id"], 2, prompt="b", seed=1)) for each in forks[::23]}
        assert len(texts) == 1
        full = replicas.post(stream, "fork", n=40)  # the second message finds no room
        assert (full.status_code, code(full)) == (429, "state_quota_exceeded")
        for fork in forks:
            assert replicas.delete(fork["id"]).is_success
        assert replicas.post(stream, "fork", n=70).status_code == 201


def test_a_store_needs_keys_that_last_and_its_password_is_not_repeated() -> None:
    with pytest.raises(SettingsError, match="SRUSERVE_STATE_KEYS") as refused:
        load_settings(store="redis://:secret-word@127.0.0.1")
    assert "secret-word" not in str(refused.value)
    with pytest.raises(SettingsError, match="SRUSERVE_STORE: should begin with") as refused:
        load_settings(store="mysql://:secret-word@127.0.0.1", state_keys=KEYS)
    assert "secret-word" not in str(refused.value)
    settings = load_settings(store="redis://:secret-word@127.0.0.1", state_keys=KEYS)
    assert "secret-word" not in repr(settings)
