"""Servers whose models change."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sruserve.server.app import Application
from tests.server.conftest import Serve
from tests.server.repository.changing_models import WORDS, save_version
from tests.support import save_random_model


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder of two models: `question` in version 2, `words` without versions."""
    save_version(tmp_path / "question", 2)
    save_random_model(tmp_path / "words", **WORDS, hidden_size=48)
    return tmp_path


@pytest.fixture
def running(serve: Serve, models: Path) -> Iterator[tuple[httpx.Client, Application]]:
    with serve(models=models, model_folders=(), model_control=True, grpc_port=0) as served:
        yield served
