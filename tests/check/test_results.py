"""Two results are equal only bit for bit; a difference has a place, a size and a kind."""

import math
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sruserve.check.protocols.sruserve_results import task_result
from sruserve.check.results import Difference, Result, Scalar, compare, flatten, joined

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=2))


def difference(one: Scalar, other: Scalar) -> Difference | None:
    return compare(Result({"x": (one,)}), Result({"x": (other,)}))


@given(st.lists(SCALARS))
def test_a_result_equals_itself(values: list[Scalar]) -> None:
    assert compare(Result({"x": tuple(values)}), Result({"x": tuple(values)})) is None


@pytest.mark.parametrize(
    ("one", "other", "largest", "is_number"),
    [
        (1.0, 1.5, 0.5, True),
        (0.0, -0.0, 0.0, True),
        (1.0, math.nextafter(1.0, 2), math.ulp(1.0), True),
        (1.0, math.nan, math.inf, True),
        (1.0, math.inf, math.inf, True),
        (2, 2.5, 0.5, True),
        (2**60, 2**60 + 1, 1.0, False),
        (10**400, 1, math.inf, False),
        (10**400, 1.0, math.inf, True),
        ("a", "b", 0.0, False),
        (1.0, None, 0.0, False),
        (1, True, 0.0, False),
        (0.0, False, 0.0, False),
    ],
)
def test_a_difference_has_its_size_and_kind(
    one: Any, other: Any, largest: float, is_number: bool
) -> None:
    for gap in difference(one, other), difference(other, one):
        assert gap is not None
        assert (gap.largest, gap.only_numbers) == (largest, is_number)
        assert gap.is_within(1.0) == (is_number and largest <= 1)
        assert not gap.is_within(0.0)


def test_rounding_is_relative_to_large_numbers_and_absolute_for_small_ones() -> None:
    for one, other, is_rounding in [(1e6, 1e6 + 1, True), (1e-6, 2e-6, True), (1, 1.001, False)]:
        gap = difference(one, other)
        assert gap is not None
        assert gap.is_rounding == is_rounding


@pytest.mark.parametrize("other", [math.inf, math.nan, 10**400])
def test_an_infinite_difference_is_no_rounding(other: float) -> None:
    difference = compare(Result({"y": (1.0,)}), Result({"y": (other,)}))
    assert difference is not None
    assert difference.largest == difference.relative == math.inf
    assert not difference.is_rounding


def test_a_comparison_of_many_values_takes_no_memory_for_each() -> None:
    one, other = (Result({"y": tuple(range(i, i + 100_000))}) for i in (0, 1))
    tracemalloc.start()
    try:
        compare(one, other)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_missing_value_and_a_missing_part_differ() -> None:
    whole = Result({"x": (1.0, 2.0), "y": ("a",)})
    for less in Result({"x": (1.0,), "y": ("a",)}), Result({"x": (1.0, 2.0)}):
        gap = compare(whole, less)
        assert gap is not None
        assert not gap.only_numbers
        assert "(nothing)" in gap.where


def test_the_first_difference_is_shown_with_the_text_after_it() -> None:
    gap = compare(Result({"text": tuple("to be")}), Result({"text": tuple("to do")}))
    assert gap is not None
    assert gap.where == "text[3]: 'be' became 'do'"


def test_chunks_follow_each_other_where_a_part_grows_and_the_last_counts_elsewhere() -> None:
    chunks = [Result({"steps": (i, i), "label": (str(i),)}, frozenset({"steps"})) for i in range(3)]
    assert joined(chunks).parts == {"steps": (0, 0, 1, 1, 2, 2), "label": ("2",)}


def test_chunks_of_a_translation_add_up_and_have_the_end_of_the_last_one() -> None:
    begun: dict[str, Any] = {"text": "on", "token_ids": None, "finish_reason": None, "score": -1.0}
    ended = {"text": "e", "token_ids": None, "finish_reason": "stop", "score": -2.0}
    whole = task_result("translate", {**ended, "text": "one"})
    chunks = [task_result("translate", each) for each in (begun, ended)]
    assert compare(whole, joined(chunks)) is None
    for change in ({"text": "ore"}, {"score": -2.5}, {"finish_reason": "length"}):
        assert compare(whole, task_result("translate", {**ended, "text": "one", **change}))


def test_nested_values_are_flattened_in_their_order() -> None:
    assert flatten({"a": [1, [2.5, None]], "b": {"c": "x"}}) == (1, 2.5, None, "x")
