"""An engine with a language model, in each type of numbers."""

import asyncio
from collections.abc import Iterator

import pytest

from sruserve.server.engine.config import EngineConfig
from tests.server.engine.driver import Driver
from tests.support import random_model


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def lm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    model = random_model(tmp_path_factory.mktemp("lm") / "lm", dtype=request.param)
    with Driver(model, EngineConfig(max_batch_tokens=256)) as driver:
        yield driver
        asyncio.run(driver.until(lambda: driver.engine.rows == 0))  # else a row leaked
