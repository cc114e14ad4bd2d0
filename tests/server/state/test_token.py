"""State tokens: what was sealed comes back exactly, and nothing else is ever let in."""

import base64
import contextlib
import sys
import tracemalloc
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sruserve.model.names import DType
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import (
    StateExpired,
    StateNotFinite,
    StateRefused,
    StateTampered,
    StateTooLarge,
    StateUnknownKey,
    StateWrongModel,
    StateWrongTenant,
)
from sruserve.server.key_ring import KeyRing
from sruserve.server.state import token as module
from sruserve.server.state.codec import pack_snapshot, packed_bytes, unpack_snapshot
from sruserve.server.state.token import Binding, StateSealer

WIDTH = 12
BINDING = Binding.of("ab" * 32, "float32", WIDTH)
OLD_KEY, NEW_KEY = b"o" * 32, b"n" * 32


def sealer(*keys: bytes, ttl: int = 60, limit: int = 1 << 20, now: float = 1000.0) -> StateSealer:
    return StateSealer(KeyRing(keys or (OLD_KEY,)), ttl, limit, clock=lambda: now)


def row(*values: float) -> np.ndarray:
    return np.resize(np.array(values or (0.5,), dtype=np.float32), WIDTH)


texts = st.text(max_size=40).filter(lambda s: s.isprintable() or s.isascii())
snapshots = st.builds(
    Snapshot,
    row=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1).map(
        lambda values: row(*values)
    ),
    steps=st.integers(0, 2**62 - 1),
    pending=st.integers(-1, 2**31 - 1),
    seed=st.integers(0, 2**64 - 1),
    choice=st.integers(0, 2**32),
    window=st.lists(st.integers(0, 2**31 - 1), max_size=70).map(tuple),
    word=texts,
    utf8=st.binary(max_size=3),
    held_back=texts,
).flatmap(
    lambda snapshot: st.one_of(
        st.just(snapshot),
        st.builds(
            partial(replace, snapshot),
            constraint=st.binary(min_size=16, max_size=16),
            consumed=st.binary(max_size=40),
        ),
    )
)


@pytest.mark.parametrize("dtype", get_args(DType))
def test_a_model_of_any_compute_dtype_has_tokens(dtype: str) -> None:
    binding = Binding.of("ab" * 32, dtype, WIDTH)
    assert same(sealer().open(sealer().seal(Snapshot(row()), binding), binding), Snapshot(row()))


def same(a: Snapshot, b: Snapshot) -> bool:
    return (
        pack_snapshot(a) == pack_snapshot(b) and np.asarray(a.row).dtype == np.asarray(b.row).dtype
    )


@given(snapshot=snapshots)
def test_what_was_sealed_is_restored_bit_for_bit(snapshot: Snapshot) -> None:
    token = sealer().seal(snapshot, BINDING)
    opened = sealer().open(token, BINDING)
    assert same(opened, snapshot)
    assert (opened.word, opened.utf8, opened.held_back) == (
        snapshot.word,
        snapshot.utf8,
        snapshot.held_back,
    )
    assert opened.window == snapshot.window
    assert (opened.constraint, opened.consumed) == (snapshot.constraint, snapshot.consumed)
    assert (opened.seed, opened.choice) == (snapshot.seed, snapshot.choice)


@given(snapshot=snapshots, data=st.data())
def test_any_flipped_bit_is_refused(snapshot: Snapshot, data: st.DataObject) -> None:
    token = sealer().seal(snapshot, BINDING)
    raw = bytearray(base64.urlsafe_b64decode(token))
    place = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[place // 8] ^= 1 << place % 8
    with pytest.raises(StateUnknownKey if 1 <= place // 8 <= 8 else StateTampered):
        sealer().open(base64.urlsafe_b64encode(raw).decode(), BINDING)


@given(place=st.integers(0, 10_000), bit=st.integers(0, 6))
def test_any_changed_character_is_refused(place: int, bit: int) -> None:
    token = sealer().seal(Snapshot(row()), BINDING)
    characters = bytearray(token.encode())
    characters[place % len(characters)] ^= 1 << bit
    with pytest.raises(StateRefused):
        sealer().open(characters.decode(), BINDING)


@given(length=st.integers(0, 10_000))
def test_any_truncation_is_refused(length: int) -> None:
    token = sealer().seal(Snapshot(row()), BINDING)
    with pytest.raises(StateTampered):
        sealer().open(token[: length % len(token)], BINDING)


@pytest.mark.parametrize("extra", ["=", "A", "AAAA", "\n", " ", "é", "\0"])
def test_anything_added_is_refused(extra: str) -> None:
    token = sealer().seal(Snapshot(row()), BINDING)
    for changed in (token + extra, extra + token):
        with pytest.raises(StateTampered):
            sealer().open(changed, BINDING)


def test_two_seals_of_one_state_share_nothing_but_the_header() -> None:
    one, two = (base64.urlsafe_b64decode(sealer().seal(Snapshot(row()), BINDING)) for _ in "ab")
    assert one != two
    assert sum(a == b for a, b in zip(one[50:], two[50:], strict=True)) < len(one) // 8


def test_a_token_is_plain_url_safe_text_and_hides_the_text_it_holds() -> None:
    token = sealer().seal(Snapshot(row(), word="antidisestablishment"), BINDING)
    assert token.replace("-", "").replace("_", "").isalnum()
    assert b"antidis" not in base64.urlsafe_b64decode(token)


def test_after_rotation_old_tokens_open_and_new_ones_use_the_new_key() -> None:
    old = sealer(OLD_KEY).seal(Snapshot(row()), BINDING)
    rotated = sealer(NEW_KEY, OLD_KEY)
    assert same(rotated.open(old, BINDING), Snapshot(row()))
    new = rotated.seal(Snapshot(row()), BINDING)
    assert same(sealer(NEW_KEY).open(new, BINDING), Snapshot(row()))
    with pytest.raises(StateUnknownKey, match="SRUSERVE_STATE_KEYS"):
        sealer(OLD_KEY).open(new, BINDING)


def test_a_token_expires_exactly_when_the_operator_said() -> None:
    token = sealer(ttl=60, now=1000).seal(Snapshot(row()), BINDING)
    sealer(now=1059.9).open(token, BINDING)
    with pytest.raises(StateExpired):
        sealer(now=1060).open(token, BINDING)


def test_without_a_time_to_live_a_token_never_expires() -> None:
    token = sealer(ttl=0, now=1000).seal(Snapshot(row()), BINDING)
    sealer(now=1e12).open(token, BINDING)


@pytest.mark.parametrize(
    "other",
    [Binding.of("cd" * 32, "float32", WIDTH), Binding.of("ab" * 32, "bfloat16", WIDTH)],
    ids=["weights", "dtype"],
)
def test_a_token_of_other_weights_or_another_dtype_is_refused(other: Binding) -> None:
    token = sealer().seal(Snapshot(row()), BINDING)
    with pytest.raises(StateWrongModel):
        sealer().open(token, other)


def test_a_token_of_another_tenant_is_refused() -> None:
    mine = Binding.of("ab" * 32, "float32", WIDTH, b"m" * 16)
    token = sealer().seal(Snapshot(row()), mine)
    assert same(sealer().open(token, mine), Snapshot(row()))
    for other in (BINDING, Binding.of("ab" * 32, "float32", WIDTH, b"o" * 16)):
        with pytest.raises(StateWrongTenant):
            sealer().open(token, other)


def test_a_row_of_another_width_is_refused() -> None:
    token = sealer().seal(Snapshot(row()), BINDING)
    with pytest.raises(StateTampered):
        sealer().open(token, Binding(BINDING.digest, BINDING.dtype, WIDTH + 1))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_state_that_is_not_finite_is_refused(value: float) -> None:
    token = sealer().seal(Snapshot(row(1.0, value)), BINDING)
    with pytest.raises(StateNotFinite):
        sealer().open(token, BINDING)


def test_a_state_over_the_limit_is_never_sealed_and_says_what_to_do() -> None:
    with pytest.raises(StateTooLarge, match="SRUSERVE_MAX_STATE_TOKEN_BYTES"):
        sealer(limit=100).seal(Snapshot(row()), BINDING)
    with pytest.raises(StateTooLarge):
        sealer(limit=100).open("A" * 104, BINDING)


@given(data=st.binary(max_size=300))
def test_unpacking_any_bytes_gives_a_snapshot_or_a_refusal(data: bytes) -> None:
    with contextlib.suppress(StateRefused):
        unpack_snapshot(data, WIDTH)


@given(snapshot=snapshots, place=st.integers(0, 10_000), value=st.integers(0, 255))
def test_unpacking_changed_bytes_gives_a_valid_snapshot_or_a_refusal(
    snapshot: Snapshot, place: int, value: int
) -> None:
    data = bytearray(pack_snapshot(snapshot))
    data[place % len(data)] = value
    try:
        read = unpack_snapshot(bytes(data), WIDTH)
    except StateRefused:
        return
    assert np.asarray(read.row).shape == (WIDTH,)
    assert np.isfinite(np.asarray(read.row)).all()
    assert -1 <= read.pending < 2**31


@pytest.mark.parametrize(
    ("constraint", "consumed"), [(b"", b"a"), (b"c" * 15, b""), (b"c" * 16, b"a" * 32_769)]
)
def test_a_constraint_whose_parts_do_not_fit_is_refused(constraint: bytes, consumed: bytes) -> None:
    data = pack_snapshot(Snapshot(row(), constraint=constraint, consumed=consumed))
    with pytest.raises(StateTampered):
        unpack_snapshot(data, WIDTH)


def test_a_long_state_is_sealed_and_opened_by_the_calls_of_a_short_one_with_few_copies() -> None:
    def cost(width: int) -> tuple[int, int]:
        """Python's calls, and the most bytes that are allocated at once."""
        binding = Binding.of("ab" * 32, "float32", width)
        snapshot, token_sealer = Snapshot(np.ones(width, np.float32)), sealer()
        calls = 0

        def see(_: FrameType, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        def both() -> None:
            token_sealer.open(token_sealer.seal(snapshot, binding), binding)

        both()
        before = sys.getprofile()
        sys.setprofile(see)
        try:
            both()
        finally:
            sys.setprofile(before)
        tracemalloc.start()
        try:
            both()
            return calls, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    short, long = cost(16), cost(16384)
    assert long[0] == short[0]
    assert long[1] < 6 * 65536  # of which base64 takes a third more


@given(snapshots)
def test_the_size_of_a_packed_snapshot_is_known_before_it_is_packed(snapshot: Snapshot) -> None:
    assert packed_bytes(snapshot) == len(pack_snapshot(snapshot))


def test_a_state_that_fits_no_token_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[Snapshot] = []
    monkeypatch.setattr(module, "pack_snapshot", packed.append)
    with pytest.raises(StateTooLarge):
        sealer(limit=100).seal(Snapshot(row=row()), BINDING)
    assert not packed
