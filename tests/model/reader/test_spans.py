"""The best spans: every span scored, the best first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sruserve.model.reader.spans import best_spans

SHARES = st.lists(st.sampled_from([0.0, 0.125, 0.25, 0.5, 1.0]), min_size=1, max_size=24)


@given(starts=SHARES, width=st.integers(1, 16), count=st.integers(1, 40), data=st.data())
def test_spans_are_the_best_of_all_that_are_short_enough(
    starts: list[float], width: int, count: int, data: st.DataObject
) -> None:
    share, words = st.sampled_from([0.0, 0.25, 0.5]), len(starts)
    ends = data.draw(st.lists(share, min_size=words, max_size=words))
    every = [
        (i, j, starts[i] * ends[j])
        for i in range(len(starts))
        for j in range(i, min(i + width, len(starts)))
    ]
    best = sorted(every, key=lambda span: -span[2])[:count]
    begins, finishes = (np.array(values, np.float32) for values in (starts, ends))
    assert best_spans(begins, finishes, width, count) == best


@pytest.mark.parametrize("words", [1, 2, 15, 16])
def test_an_answer_never_ends_before_it_begins_or_beyond_the_document(words: int) -> None:
    starts = np.linspace(0.1, 1, words, dtype=np.float32)
    spans = best_spans(starts, starts[::-1].copy(), 15, 1000)
    assert all(first <= last < min(words, first + 15) for first, last, _ in spans)
    assert len({span[:2] for span in spans}) == len(spans)
