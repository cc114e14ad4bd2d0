"""Small models of every kind, loaded in this process, and a server of the same folders."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sruserve.api.local_model import LocalModel
from sruserve.api.local_settings import local_settings
from tests.server.conftest import folders, serve, undeclared

__all__ = ["folders", "serve", "undeclared"]


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
