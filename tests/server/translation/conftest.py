"""Servers of small random translation systems."""

from collections.abc import Iterator

import httpx
import pytest

from sruserve.model.translation.folder import TranslationModel
from sruserve.server.app import Application
from sruserve.server.engine.translation.engine import TranslationEngine
from tests.server.conftest import Serve
from tests.server.translation.held_searches import Searches
from tests.server.translation.models import save_random_system

Running = tuple[httpx.Client, Application]
NAMES = ("transformer", "gru-dot")
# with what is added to the score of the end, such that some translations end and others do not
ONE_WAY = {"gru-one-way": 5.0, "lstm-one-way": 3.5, "sru-one-way": -1.0, "qrnn-general": 3.2}


@pytest.fixture(scope="session")
def systems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TranslationModel]:
    folder = tmp_path_factory.mktemp("systems")
    ends = {
        "transformer": 1.0,
        "gru-dot": 4.0,
    }  # such that some translations end, and others do not
    return {name: save_random_system(folder / name, name, 1, end) for name, end in ends.items()}


@pytest.fixture(scope="session")
def running(serve: Serve, systems: dict[str, TranslationModel]) -> Iterator[Running]:
    """A server with both systems."""
    folders = [str(model.path) for model in systems.values()]
    with serve(*folders, grpc_port=0, sse_ping_seconds=0.2) as both:
        yield both


@pytest.fixture(scope="session")
def one_way(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TranslationModel]:
    """Systems that translate texts in chunks."""
    folder = tmp_path_factory.mktemp("one-way")
    return {name: save_random_system(folder / name, name, 1, end) for name, end in ONE_WAY.items()}


@pytest.fixture(scope="module")
def both(
    serve: Serve, one_way: dict[str, TranslationModel], systems: dict[str, TranslationModel]
) -> Iterator[Running]:
    """A server with these systems, and one that reads whole texts."""
    folders = [str(model.path) for model in (*one_way.values(), systems["gru-dot"])]
    with serve(*folders) as running:
        yield running


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Searches]:
    """Steps of searches that a test holds."""
    gate = Searches(monkeypatch)
    yield gate
    gate.go_on()


def engine_of(application: Application, name: str) -> TranslationEngine:
    """The engine of a system."""
    engine = application.lifecycle.catalogue[name].engine
    assert isinstance(engine, TranslationEngine)
    return engine
