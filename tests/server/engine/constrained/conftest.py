"""Processes of grammars, and an engine of bytes."""

import gc
from collections.abc import Iterator

import pytest

from tests.server.engine.constrained.constraints import LETTERS
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


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A model of few characters: no 'q', no digit but 3, no quotes, half of a two-byte one."""
    folder = tmp_path_factory.mktemp("lm") / "few"
    with Driver(random_model(folder, vocabulary=[*LETTERS, 0xC3, 0xA9, 0xE2, 0x82])) as driver:
        yield driver
        assert driver.engine.rows == 0, "a row leaked"
