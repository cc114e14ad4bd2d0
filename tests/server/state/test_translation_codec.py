"""Packed translations: all that was packed comes back, and nothing that cannot go on."""

import contextlib
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sruserve.server.engine.partial_translation import PartialTranslation
from sruserve.server.errors import StateNotFinite, StateRefused
from sruserve.server.state.translation_codec import (
    pack_translation,
    packed_size,
    unpack_translation,
)
from tests.model.translation.systems import TARGET, random_system

SYSTEM = random_system("gru-one-way")


def numbers(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def translation(ids: int, written: int, wait_k: int, word: str = "") -> PartialTranslation:
    """A translation that waits, after some ids."""
    begun = max(0, ids - wait_k + 1)
    return PartialTranslation(
        wait_k,
        9,
        word,
        None,
        -1.25,
        np.arange(min(written, begun)) % TARGET,
        numbers(ids, SYSTEM.memory_width),
        numbers(SYSTEM.encoder_width),
        numbers(SYSTEM.state_width if begun else 0),
    )


translations = st.builds(
    translation, st.integers(0, 6), st.integers(0, 6), st.integers(1, 8), st.text(max_size=9)
)


def same(one: PartialTranslation, other: PartialTranslation) -> bool:
    pairs = [(getattr(one, each.name), getattr(other, each.name)) for each in fields(one)]
    return all(
        np.array_equal(a, b) and a.dtype == b.dtype if isinstance(a, np.ndarray) else a == b
        for a, b in pairs
    )


@given(
    partial=translations, ended=st.sampled_from([None, "stop", "length"]), zeros=st.integers(0, 2)
)
def test_what_was_packed_is_restored_bit_for_bit(
    partial: PartialTranslation, ended: str | None, zeros: int
) -> None:
    partial = partial if ended is None else partial.ended(ended)
    packed = pack_translation(partial)
    assert same(unpack_translation(packed + bytes(zeros), SYSTEM), partial)
    bound = packed_size(SYSTEM, len(partial.rows), len(partial.tokens), partial.word)
    assert len(packed) == bound or not len(partial.decoder)
    assert len(packed) <= bound


@given(partial=translations, place=st.integers(0, 10_000), value=st.integers(0, 255))
def test_unpacking_changed_bytes_gives_a_valid_translation_or_a_refusal(
    partial: PartialTranslation, place: int, value: int
) -> None:
    data = bytearray(pack_translation(partial))
    data[place % len(data)] = value
    try:
        read = unpack_translation(bytes(data), SYSTEM)
    except StateRefused:
        return
    assert read.rows.shape == (len(read.rows), SYSTEM.memory_width)
    assert read.encoder.shape == (SYSTEM.encoder_width,)
    assert all(0 <= token < TARGET for token in read.tokens)
    assert np.isfinite(read.rows).all()
    if read.finish_reason is None:
        assert len(read.tokens) <= max(0, len(read.rows) - read.wait_k + 1)
        assert bool(len(read.decoder)) == (len(read.rows) >= read.wait_k)


@given(data=st.binary(max_size=300))
def test_unpacking_any_bytes_gives_a_translation_or_a_refusal(data: bytes) -> None:
    with contextlib.suppress(StateRefused):
        unpack_translation(data, SYSTEM)


def test_a_translation_that_is_not_finite_is_refused() -> None:
    partial = translation(4, 2, 2)
    rows = np.full_like(partial.rows, np.nan)
    for unfit in (replace(partial, rows=rows), replace(partial, log_probability=-np.inf)):
        with pytest.raises(StateNotFinite):
            unpack_translation(pack_translation(unfit), SYSTEM)
