"""KServe's statistics of steps stay short, however many sizes of steps there are."""

from hypothesis import given
from hypothesis import strategies as st

from sruserve.server.metrics.step_statistics import StepStatistics


@given(st.lists(st.integers(1, 4096)))
def test_steps_count_in_the_group_of_their_size(sizes: list[int]) -> None:
    statistics = StepStatistics()
    for size in sizes:
        statistics.step(size, 0.5)
    _, groups = statistics.read()
    for max_rows, stat in groups.items():
        inside = [size for size in sizes if max_rows // 2 < size <= max_rows]
        assert (stat.count, stat.seconds) == (len(inside), len(inside) / 2)
    assert sum(stat.count for stat in groups.values()) == len(sizes)


def test_groups_are_few() -> None:
    statistics = StepStatistics()
    for size in range(1, 4097):
        statistics.step(size, 0.5)
    assert sorted(statistics.read()[1]) == [2**power for power in range(13)]
