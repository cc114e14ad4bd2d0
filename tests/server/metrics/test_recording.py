"""Values recorded without the client library's checks: the same samples."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from sruserve.server.metrics.recording import counter, observer

BOUNDS = (0.001, 0.5, 1.0, 8.0)
VALUES = st.lists(st.sampled_from(BOUNDS) | st.floats(0, 10), max_size=20)


@given(VALUES)
def test_a_histogram_and_a_counter_get_the_same_samples(values: list[float]) -> None:
    pages = []
    for fast in (False, True):
        registry = CollectorRegistry()
        histogram = Histogram("seconds", "-", ("model",), registry=registry, buckets=BOUNDS)
        total = Counter("total", "-", ("model",), registry=registry)
        of_model, total_of_model = histogram.labels("m"), total.labels("m")
        observe = observer(of_model) if fast else of_model.observe
        add = counter(total_of_model) if fast else total_of_model.inc
        for value in values:
            observe(value)
            add(value)
        pages.append(
            [line for line in generate_latest(registry).split(b"\n") if b"created" not in line]
        )
    assert pages[0] == pages[1]
