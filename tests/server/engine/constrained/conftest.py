"""Processes of grammars, and an engine of bytes."""

import gc
from collections.abc import Iterator

import pytest

from tests.server.engine.constrained.grammar_processes import Grammars
from tests.server.engine.driver import Driver
from tests.support import random_model


@pytest.fixture(scope="module")
def shared() -> Iterator[Grammars]:
    grammars = Grammars()
    yield grammars
    grammars.host.close()


@pytest.fixture
def grammars(shared: Grammars) -> Grammars:
    gc.collect()  # errors of other tests may hold frames, and these constraints
    return shared


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("lm") / "bytes"
    with Driver(random_model(folder, vocabulary=list(range(256)))) as driver:
        yield driver
        assert driver.engine.rows == 0, "a row leaked"
