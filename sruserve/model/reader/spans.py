"""The best spans of a document: the product of the probabilities of their ends (DrQA, 3.2)."""

import numpy as np
from numpy.typing import NDArray

Spans = list[tuple[int, int, float]]
"""The first word of each span, its last word, and its score."""


def best_spans(
    starts: NDArray[np.float32], ends: NDArray[np.float32], max_words: int, count: int
) -> Spans:
    """Return up to `count` spans of at most `max_words` words, the best ones first.

    starts, ends: (words), float32: the probability that an answer begins, or ends, with each word.

    Of spans with equal scores the one that begins first is first, then the shorter one.
    """
    words = len(starts)
    width = min(max_words, words)
    padded = np.concatenate([ends, np.zeros(width - 1, np.float32)])
    scores = starts[:, None] * np.lib.stride_tricks.sliding_window_view(padded, width)
    # No span ends beyond the last word, so none of these is a candidate.
    first, length = np.ogrid[:words, :width]
    scores[first + length >= words] = -1.0
    flat = scores.ravel()
    count = min(count, words * width - width * (width - 1) // 2)
    least = np.partition(flat, len(flat) - count)[len(flat) - count]
    candidates = np.flatnonzero(flat >= least)
    order = candidates[np.argsort(-flat[candidates], kind="stable")[:count]]
    return [
        (place // width, place // width + place % width, float(flat[place]))
        for place in order.tolist()
    ]
