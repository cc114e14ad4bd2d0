"""Values recorded without the client library's checks: the same samples."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from sruserve.server.metrics.recording import batch_observer, counter, observer

BOUNDS = (0.001, 0.5, 1.0, 8.0)
VALUES = st.lists(st.sampled_from(BOUNDS) | st.floats(0, 10), max_size=20)


@given(VALUES)
def test_a_histogram_and_a_counter_get_the_same_samples(values: list[float]) -> None:
    pages = []
    for recorded in ("by the library", "one by one", "together"):
        registry = CollectorRegistry()
        histogram = Histogram("seconds", "-", ("model",), registry=registry, buckets=BOUNDS)
        total = Counter("total", "-", ("model",), registry=registry)
        of_model, total_of_model = histogram.labels("m"), total.labels("m")
        by_library = recorded == "by the library"
        observe = of_model.observe if by_library else observer(of_model)
        add = total_of_model.inc if by_library else counter(total_of_model)
        if recorded == "together":
            batch_observer(of_model)(values)
        for value in values:
            if recorded != "together":
                observe(value)
            add(value)
        pages.append(
            [line for line in generate_latest(registry).split(b"\n") if b"created" not in line]
        )
    assert pages[0] == pages[1] == pages[2]
