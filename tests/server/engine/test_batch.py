"""A batch in halves is the same streams, without those that were dropped in between."""

from types import SimpleNamespace
from typing import Any

import pytest

from sruserve.server.engine.batch import Batch


@pytest.mark.parametrize("decodes", range(6))
@pytest.mark.parametrize("inputs", range(6))
def test_halves_are_the_whole_and_as_large(decodes: int, inputs: int) -> None:
    streams: list[Any] = [SimpleNamespace(dropped=False) for _ in range(decodes + inputs)]
    batch = Batch(streams[:decodes], [(stream, 3) for stream in streams[decodes:]])
    first, second = batch.halves()
    assert first.decodes + second.decodes == batch.decodes
    assert first.inputs + second.inputs == batch.inputs
    assert 0 <= len(second) - len(first) <= 1


def test_streams_that_are_dropped_with_the_first_half_are_not_in_the_second() -> None:
    streams: list[Any] = [SimpleNamespace(dropped=False) for _ in range(8)]
    halves = Batch(streams[:6], [(stream, 3) for stream in streams[6:]]).halves()
    assert next(halves).decodes == streams[:4]
    streams[5].dropped = streams[6].dropped = True
    second = next(halves)
    assert second.decodes == [streams[4]]
    assert second.inputs == [(streams[7], 3)]
