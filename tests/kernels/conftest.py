"""Fixtures of the kernels' tests."""

from collections.abc import Iterator

import pytest

from tests.kernels.instruction_sets import BEST, HERE, use


@pytest.fixture(scope="module", params=HERE)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    """Use each instruction set in turn."""
    assert use(request.param)
    yield
    assert use(BEST)
