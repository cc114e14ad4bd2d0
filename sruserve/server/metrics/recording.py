"""Record values of one series: what prometheus-client does, without its checks of each value.

prometheus-client asks at each value whether the series has all of its labels, and compares the
value with one bound after another. A warm request records a dozen values.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from prometheus_client import Counter, Histogram


def observer(histogram: Histogram) -> Callable[[float], None]:
    """`histogram.observe`, of a series with all of its labels. No value is NaN."""
    bounds = histogram._upper_bounds
    add_to_sum = histogram._sum.inc
    count_in = [bucket.inc for bucket in histogram._buckets]

    def observe(value: float) -> None:
        add_to_sum(value)
        count_in[bisect_left(bounds, value)](1)  # the first bound that is not below it

    return observe


def batch_observer(histogram: Histogram) -> Callable[[Sequence[float]], None]:
    """`observer` of several values at once: each count and the sum grow once."""
    bounds = histogram._upper_bounds
    add_to_sum = histogram._sum.inc
    count_in = [bucket.inc for bucket in histogram._buckets]

    def observe(values: Sequence[float]) -> None:
        add_to_sum(sum(values))
        counts: dict[int, int] = {}
        for value in values:
            bucket = bisect_left(bounds, value)
            counts[bucket] = counts.get(bucket, 0) + 1
        for bucket, count in counts.items():
            count_in[bucket](count)

    return observe


def counter(series: Counter) -> Callable[[float], None]:
    """`series.inc`, of a series with all of its labels, for amounts that are not negative."""
    increment: Callable[[float], None] = series._value.inc
    return increment
