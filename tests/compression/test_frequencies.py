"""Frequencies follow scores, row by row, and are never 0."""

from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sruserve.compression.errors import UnfitModelError
from sruserve.compression.frequencies import Scores, cumulative_frequencies
from sruserve.compression.range_coder import MAX_TOTAL

SCORES = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.integers(1, 300)),
    elements=st.floats(-80, 80, width=32),
)


@given(scores=SCORES)
def test_every_symbol_has_a_frequency_near_its_probability(scores: Scores) -> None:
    frequencies = np.diff(cumulative_frequencies(scores))
    assert frequencies.min() >= 1
    assert frequencies.sum(1).max() <= MAX_TOTAL
    shares = frequencies / frequencies.sum(1, keepdims=True)
    weights = np.exp(scores.astype(np.float64) - scores.max(1, keepdims=True))
    probabilities = weights / weights.sum(1, keepdims=True)
    expected = probabilities * 4095 / 4096 + 1 / 4096 / scores.shape[1]
    np.testing.assert_allclose(shares, expected, rtol=2e-4, atol=1e-8)


@given(scores=SCORES)
def test_a_row_depends_on_no_other_row_and_on_no_place_in_memory(scores: Scores) -> None:
    together = cumulative_frequencies(scores)
    for row, own in zip(scores, together, strict=True):
        moved = np.empty(len(row) + 1, np.float32)[1:]
        moved[:] = row
        np.testing.assert_array_equal(cumulative_frequencies(moved[None])[0], own)


def test_a_vocabulary_of_a_million_ids_has_frequencies_of_at_least_1() -> None:
    scores = np.zeros((1, 1 << 20), np.float32)
    scores[0, 7] = 30
    frequencies = np.diff(cumulative_frequencies(scores))[0]
    assert frequencies.min() >= 1
    assert frequencies.argmax() == 7
    assert frequencies[7] / frequencies.sum() > 0.999 * exp(30) / (exp(30) + (1 << 20))


def test_minus_infinity_is_the_smallest_score() -> None:
    frequencies = np.diff(cumulative_frequencies(np.array([[0, -np.inf]], np.float32)))[0]
    assert 1 <= frequencies[1] < frequencies[0] / 4096


@pytest.mark.parametrize("odd", [np.nan, np.inf], ids=str)
def test_scores_that_are_no_numbers_are_refused(odd: float) -> None:
    with pytest.raises(UnfitModelError, match="not finite"):
        cumulative_frequencies(np.array([[0, odd]], np.float32))
    with pytest.raises(UnfitModelError, match="not finite"):
        cumulative_frequencies(np.full((1, 2), -np.inf, np.float32))
