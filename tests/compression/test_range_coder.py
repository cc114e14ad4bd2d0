"""The arithmetic coder alone: what is coded comes back, in as few bytes as it has information."""

from itertools import accumulate
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sruserve.compression.counts import Counts
from sruserve.compression.errors import DamagedFileError
from sruserve.compression.range_coder import MAX_TOTAL, RangeDecoder, RangeEncoder

FREQUENCIES = st.lists(st.integers(1, 3) | st.integers(1, MAX_TOTAL // 64), min_size=1, max_size=64)


@st.composite
def coded(draw: st.DrawFn) -> list[tuple[list[int], int]]:
    """Symbols, each with a table of frequencies of its own."""
    tables = draw(st.lists(FREQUENCIES, max_size=200))
    return [(table, draw(st.integers(0, len(table) - 1))) for table in tables]


def encode(symbols: list[tuple[list[int], int]]) -> bytes:
    coder = RangeEncoder()
    for table, symbol in symbols:
        coder.encode(sum(table[:symbol]), table[symbol], sum(table))
    return coder.finish()


@given(symbols=coded())
def test_symbols_of_any_frequencies_are_restored(symbols: list[tuple[list[int], int]]) -> None:
    decoder = RangeDecoder(encode(symbols))
    for table, symbol in symbols:
        target = decoder.target(sum(table))
        ends = list(accumulate(table))
        decoded = next(i for i, end in enumerate(ends) if target < end)
        assert decoded == symbol
        decoder.consume(ends[decoded] - table[decoded], table[decoded])


@given(symbols=coded())
def test_a_code_is_at_most_two_bytes_longer_than_its_information(
    symbols: list[tuple[list[int], int]],
) -> None:
    bits = sum(log2(sum(table) / table[symbol]) for table, symbol in symbols)
    assert len(encode(symbols)) <= bits / 8 + 2


def test_a_carry_passes_through_any_number_of_written_bytes() -> None:
    # The middle third again and again encloses a half, whose code is 0x7FFF… or 0x8000….
    third = [1, 1, 1]
    for count in range(1, 200):
        own = [*[(third, 1)] * count, ([1, 1 << 30], 1)]
        decoder = RangeDecoder(encode(own))
        for table, symbol in own:
            assert sum(table[:symbol]) <= decoder.target(sum(table)) < sum(table[: symbol + 1])
            decoder.consume(sum(table[:symbol]), table[symbol])


def test_a_code_that_no_encoder_made_is_refused() -> None:
    with pytest.raises(DamagedFileError, match="no code of the model"):
        RangeDecoder(b"\xff" * 8).target(3)


@given(symbols=st.lists(st.integers(0, 255), max_size=300))
def test_counts_find_the_symbol_of_each_number_in_its_interval(symbols: list[int]) -> None:
    counts = Counts(256)
    for symbol in symbols * 30:  # so that counts are halved
        counts.add(symbol)
    for symbol in symbols:
        low, own, total = counts.interval(symbol)
        assert own >= 1
        assert total == counts.total <= 1 << 13
        assert counts.find(low) == counts.find(low + own - 1) == symbol
