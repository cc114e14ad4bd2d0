"""Small models of every kind, loaded in this process, and a server of the same folders."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sruserve
from sruserve.api.local_model import LocalModel
from sruserve.api.local_settings import local_settings
from sruserve.api.model import Model
from tests.server.conftest import folders, leftovers, serve, undeclared

KEY = "11" * 32

__all__ = ["folders", "leftovers", "serve", "undeclared"]


@pytest.fixture(scope="module")
def local(folders: Path) -> Iterator[Callable[[str], LocalModel]]:
    """Loads a model once, by the name of its folder."""
    loaded: dict[str, LocalModel] = {}

    def load(name: str) -> LocalModel:
        if name not in loaded:
            loaded[name] = LocalModel.load(local_settings(folders / name, device="cpu"))
        return loaded[name]

    yield load
    for model in loaded.values():
        model.loop.run(model.stop())


@pytest.fixture(scope="session")
def load(folders: Path) -> Iterator[Callable[..., Model]]:
    """Loads a model once, by the name of its folder in `folders` or by its path."""
    loaded: dict[Path, Model] = {}

    def get(name: str | Path) -> Model:
        path = folders / name
        if path not in loaded:
            loaded[path] = sruserve.load(path, device="cpu", state_keys=KEY)
        return loaded[path]

    yield get
    for model in loaded.values():
        model.close()
