"""What lies in Redis is not trusted: a server wrote it for that stream, or it is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.server.streams.conftest import OwnRedis, Replicas, key_of
from tests.server.streams.replies import code

Fields = dict[Any, Any]
Change = Callable[[Fields, Fields, Fields], Fields]

# Of a stream after two steps: what it is, what it was after one, what another stream is.
CHANGES: dict[str, Change] = {
    "a head that is cut": lambda now, _, __: {b"head": now[b"head"][:-1]},
    "a head of nothing": lambda *_: {b"head": b""},
    "a head of other bytes": lambda *_: {b"head": b"\xff" * 100},
    "a head of another version": lambda *_: {b"head": b'{"model": "characters", "step": 2}'},
    "a head of a mebibyte": lambda *_: {b"head": b"a" * (1 << 20)},
    "the head of another stream": lambda _, __, other: {b"head": other[b"head"]},
    "the reply of another stream": lambda _, __, other: {b"reply": other[b"reply"]},
    "the reply to an earlier step": lambda _, before, __: {b"reply": before[b"reply"]},
    "a reply that is cut": lambda now, _, __: {b"reply": now[b"reply"][:-1]},
    "no reply": lambda *_: {b"reply": b""},
    "a reply that is too long": lambda *_: {b"reply": b"a" * (20 << 20)},
    "the state of another stream": lambda _, __, other: {b"state2": other[b"state2"]},
    "the state of an earlier step": lambda now, _, __: {b"state2": now[b"state1"]},
    "the head and the reply of another": lambda _, __, other: {
        name: other[name] for name in (b"head", b"reply")
    },
    "a state that is cut": lambda now, _, __: {b"state2": now[b"state2"][:-1]},
    "no state": lambda *_: {b"state2": b""},
    "a state that is too long": lambda *_: {b"state2": b"a" * (20 << 20)},
}


@pytest.fixture
def recorded(own_redis: OwnRedis) -> tuple[Replicas, redis.Redis, str, Fields, Fields, Fields]:
    replicas, _, port = own_redis
    client = redis.Redis(port=port)
    stream, other = replicas.create(), replicas.create()
    replicas.step(stream, 1, prompt="To be")
    before: Any = client.hgetall(key_of(stream))
    for each, number in ((stream, 2), (other, 1), (other, 2)):
        assert replicas.step(each, number, prompt="a").status_code == 200
    now: Any = client.hgetall(key_of(stream))
    its: Any = client.hgetall(key_of(other))
    return replicas, client, stream, now, before, its


def test_a_stream_that_was_changed_in_redis_is_refused_and_others_are_not(
    recorded: tuple[Replicas, redis.Redis, str, Fields, Fields, Fields],
) -> None:
    replicas, client, stream, now, before, other = recorded
    for what, change in CHANGES.items():
        client.hset(key_of(stream), mapping=change(now, before, other))
        replies = []
        if b"state2" not in change(now, before, other):
            replies.append(replicas.step(stream, 2, prompt="a"))  # would be answered from there
        if set(change(now, before, other)) != {b"reply"}:  # which only a repeat asks for
            replies.append(replicas.step(stream, 3, prompt="a"))
            replies.append(replicas.post(stream, "fork"))
            replies.append(replicas.get(stream, "/state"))
        for reply in replies:
            assert reply.status_code == 422, f"{what}: {reply.text}"
            assert code(reply) in ("state_tampered", "state_unknown_key"), what
        assert client.keys("*lease*") == [], f"{what} leaves the stream taken"
        client.hset(key_of(stream), mapping=now)
    assert replicas.step(stream, 2, prompt="a").status_code == 200, "it was put right again"
    assert replicas.step(stream, 3, prompt="a").status_code == 200
    client.close()


def test_an_earlier_head_is_an_earlier_stream_and_has_no_later_reply(
    recorded: tuple[Replicas, redis.Redis, str, Fields, Fields, Fields],
) -> None:
    replicas, client, stream, _, before, _ = recorded
    client.hset(key_of(stream), b"head", before[b"head"])
    repeat = replicas.step(stream, 1, prompt="To be")
    assert (repeat.status_code, code(repeat)) == (422, "state_tampered")
    assert replicas.step(stream, 2, prompt="a").status_code == 200, "as after a rewind"
    client.close()


def test_a_beginning_that_is_lost_is_not_taken_for_an_empty_one(own_redis: OwnRedis) -> None:
    replicas, _, port = own_redis
    requests = {"model": "characters", "prompt": "To be", "return_state": True}
    begun = replicas.ask("POST", "/v1/completions", json=requests).json()
    stream = replicas.create(state=begun["choices"][0]["state"])
    with redis.Redis(port=port) as client:
        client.hdel(key_of(stream), "state0")
    reply = replicas.step(stream, 1, prompt="a")
    assert (reply.status_code, code(reply)) == (422, "state_tampered")


def test_keys_of_another_type_are_503_or_healed_and_stop_no_other_stream(
    own_redis: OwnRedis,
) -> None:
    replicas, _, port = own_redis
    stream, other = replicas.create(), replicas.create()
    with redis.Redis(port=port) as client:
        client.set(key_of(stream), "x", ex=60)
        for reply in (
            replicas.get(stream),
            replicas.step(stream, 1, prompt="a"),
            replicas.delete(stream),
        ):
            assert (reply.status_code, code(reply)) == (503, "store_unavailable")
        assert replicas.step(other, 1, prompt="a").status_code == 200
        for name in ("sizes", "ends", "sum"):
            key = f"sruserve:{name}:{'0' * 32}"
            client.delete(key)
            client.rpush(key, "x")
            client.expire(key, 60)
            assert replicas.step(replicas.create(), 1, prompt="a").status_code == 200, name
        for wrong in ("x", "1e400", "-99999999999999999999"):
            client.set(f"sruserve:sum:{'0' * 32}", wrong, ex=60)
            assert replicas.step(replicas.create(), 1, prompt="a").status_code == 200, wrong


def test_a_stream_that_lives_on_without_a_new_step_still_counts(own_redis: OwnRedis) -> None:
    replicas, _, port = own_redis
    stream = replicas.create(idle_seconds=100)
    assert replicas.step(stream, 1, prompt="a").status_code == 200
    for _ in range(2):
        replicas.pass_time(60)
        assert replicas.step(stream, 1, prompt="a").status_code == 200
    assert replicas.step(replicas.create(), 1, prompt="a").status_code == 200
    with redis.Redis(port=port) as client:
        sizes: Any = client.hvals(f"sruserve:sizes:{'0' * 32}")
        assert len(sizes) == 2
        assert client.get(f"sruserve:sum:{'0' * 32}") == b"%d" % sum(map(int, sizes))


def test_each_request_that_finds_a_changed_stream_writes_no_line(
    recorded: tuple[Replicas, redis.Redis, str, Fields, Fields, Fields],
    caplog: pytest.LogCaptureFixture,
) -> None:
    replicas, client, stream, _, _, other = recorded
    another = replicas.create()
    head: Any = client.hget(key_of(another), "head")
    client.hset(key_of(stream), mapping=CHANGES["the head of another stream"]({}, {}, other))
    client.hset(key_of(another), "head", head[:1] + bytes(4) + head[5:])  # another key's
    requests = [(http, each) for http in replicas.clients for each in 5 * [stream, another]]
    codes = [code(http.get(f"/v1/streams/{each}")) for http, each in requests]
    assert set(codes) == {"state_tampered", "state_unknown_key"}
    written = [each for each in caplog.messages if "a stream in Redis" in each]
    assert len(written) == 2 * len(replicas.clients)
    client.close()
