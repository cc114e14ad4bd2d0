"""A server whose model of bytes writes constrained texts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sruserve.server.app import Application
from sruserve.server.tasks.constraint_cache import (
    ConstraintCache,
)
from tests.server.conftest import Serve
from tests.server.hand_clock import HandClock
from tests.server.tasks.constraint_cache.requests import KEYS
from tests.support import save_random_model

Running = tuple[httpx.Client, Application]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("writers")
    save_random_model(parent / "bytes", vocabulary=list(range(256)))
    return parent / "bytes"


@pytest.fixture(scope="module")
def running(serve: Serve, folder: Path) -> Iterator[Running]:
    settings: dict[str, Any] = {"models": folder.parent, "model_folders": ()}
    settings |= {"api_keys": ",".join(KEYS), "max_grammar_bytes": 32 << 20}
    with serve(clock=HandClock(), **settings) as running:
        running[0].headers["authorization"] = "Bearer 11111111"
        yield running


@pytest.fixture
def client(running: Running) -> httpx.Client:
    return running[0]


@pytest.fixture
def grammars(running: Running) -> ConstraintCache:
    return running[1].constraints
