"""The keys of all that is sealed: their order, their rotation, and what they have sealed before."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from sruserve.server.auth import Tenant
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import StateUnknownKey
from sruserve.server.key_ring import KeyRing
from sruserve.server.state.codec import pack_snapshot
from sruserve.server.state.token import Binding, Envelope, StateSealer
from sruserve.server.streams.record import StreamRecord
from sruserve.server.streams.redis.sealed_record import RecordCodec, digest

OLDER, CURRENT = bytes(range(32)), bytes(range(32, 64))
# What servers had sealed under these keys before there was a `KeyRing`: never to be made anew.
SEALED = json.loads((Path(__file__).parent / "state" / "sealed.json").read_text())
TENANT = Tenant("acme")
BINDING = Binding.of("ab" * 32, "float32", 4, TENANT.id)
SNAPSHOT = Snapshot(
    np.linspace(-1, 1, 4, dtype=np.float32),
    steps=7,
    pending=40,
    seed=5,
    choice=1,
    window=(3, 40),
    word="ab",
    utf8=b"\xc3",
    held_back="x",
)
RECORD = StreamRecord(
    "s1", TENANT, "m", 5, 60, 1_700_000_000, step=2, content=b"\x01" * 32, checkpoints=(1, 2)
)


@pytest.mark.parametrize("key", ["older", "current"])
def test_tokens_and_records_of_earlier_servers_still_open(key: str) -> None:
    ring, sealed = KeyRing([CURRENT, OLDER]), SEALED[key]
    opened = StateSealer(ring, 0, 1 << 20).open(sealed["token"], BINDING)
    assert pack_snapshot(opened) == pack_snapshot(SNAPSHOT)
    codec, reply = RecordCodec(Envelope(ring)), bytes.fromhex(sealed["reply"])
    record, digests, reply_digest = codec.open(TENANT, "s1", bytes.fromhex(sealed["head"]), 0.0)
    assert record == RECORD
    assert digests == {1: "aa" * 32, 2: "bb" * 32}
    assert codec.open_reply(record, reply, reply_digest) == b"a reply"
    assert reply_digest == digest(reply)


def test_the_first_key_seals_and_a_key_that_was_taken_away_opens_nothing() -> None:
    ring = KeyRing([CURRENT, OLDER])
    token, record = StateSealer(ring, 0, 1 << 20).seal(SNAPSHOT, BINDING), b"a record"
    sealed = Envelope(ring).seal(record, b"owner")
    StateSealer(KeyRing([CURRENT]), 0, 1 << 20).open(token, BINDING)
    assert Envelope(KeyRing([CURRENT])).open(sealed, b"owner") == record
    with pytest.raises(StateUnknownKey):
        StateSealer(KeyRing([OLDER]), 0, 1 << 20).open(token, BINDING)
    with pytest.raises(StateUnknownKey):
        Envelope(KeyRing([OLDER])).open(sealed, b"owner")


def test_keys_are_read_in_base64_url_safe_base64_and_hex_in_their_order() -> None:
    keys = [bytes([first]) * 32 for first in (0xFB, 0x01, 0x02)]
    spelled = [
        base64.b64encode(keys[0]).decode(),
        base64.urlsafe_b64encode(keys[1]).decode().rstrip("="),
        keys[2].hex(),
    ]
    ids = [KeyRing([key]).new_seal().key_id for key in keys]
    for first in range(3):
        ring = KeyRing.parse(", ".join(spelled[first:] + spelled[:first]))
        assert ring.new_seal().key_id == ids[first]
        assert all(ring.find_seal(key_id, bytes(16)) for key_id in ids)
    assert KeyRing.parse(base64.urlsafe_b64encode(keys[0]).decode()).new_seal().key_id == ids[0]


def test_nothing_is_sealed_twice_under_one_key_and_nonce() -> None:
    ring = KeyRing([CURRENT])
    assert len({ring.new_seal().encrypt(b"", b"") for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("text", "problem"), [(f"{'01' * 32},", "key 2 is empty"), ("short", "key 1 must be 32 bytes")]
)
def test_the_refusal_of_a_key_says_which_it_is(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        KeyRing.parse(text)


@pytest.mark.parametrize("keys", [[], [b"short"], [OLDER, b"short"]])
def test_a_ring_has_whole_keys_and_at_least_one(keys: list[bytes]) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        KeyRing(keys)
