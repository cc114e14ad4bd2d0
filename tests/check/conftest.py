"""One server process with a model of each task, and a way to examine any server."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sruserve.check.findings import Finding
from sruserve.check.session import Options, Outcome, check_server
from sruserve.model.heads.regression import Regression
from tests.server.processes import serving
from tests.server.translation.models import save_random_system
from tests.support import PRINTABLE, save_random_model

Examine = Callable[..., Outcome]
DEMO = Path(__file__).parents[2] / "sruserve/demo"


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The bundled models, and small random ones of the other tasks and kinds of inputs."""
    parent = tmp_path_factory.mktemp("checked")
    features: dict[str, Any] = {"input_size": 4}
    characters: dict[str, Any] = {"vocabulary": PRINTABLE}
    meter = Regression(names=("load",), steps="every")
    pair: dict[str, Any] = {"labels": ("same", "other"), **characters}
    return [
        DEMO / "question-type",
        DEMO / "shakespeare",
        DEMO / "numbers",
        save_random_model(parent / "tagger", "tag", labels=("O", "B-X", "I-X"), **characters),
        save_random_model(parent / "encoder", "encode", **features),
        save_random_model(parent / "sensor", "classify", labels=("low", "high"), **features),
        save_random_model(parent / "meter", "regress", regression=meter, **features),
        save_random_model(parent / "ids", vocab_size=50),
        save_random_model(
            parent / "whole", "classify", labels=("a", "b"), bidirectional=True, **characters
        ),
        save_random_model(parent / "pairs", "pair", **pair),
        save_random_system(parent / "gru-dot", "gru-dot").path,
    ]


@pytest.fixture(scope="session")
def url(model_folders: list[Path]) -> Iterator[str]:
    """The address of a real server of all `model_folders`."""
    with serving(*model_folders) as (client, _):
        yield str(client.base_url).rstrip("/")


@pytest.fixture
def announced() -> list[str]:
    """What examinations have announced."""
    return []


@pytest.fixture
def examine(announced: list[str]) -> Examine:
    def run(*urls: str, **options: Any) -> Outcome:
        return check_server(
            Options(urls, timeout_seconds=options.pop("timeout", 30.0), **options),
            announced.append,
            lambda check: None,
        )

    return run


def findings(outcome: Outcome) -> dict[str, Finding]:
    return {each.check.name: each.finding for each in outcome.checked}
