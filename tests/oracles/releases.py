"""The released library itself, each release in a process of its own."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from tests.oracles import worker
from tests.preloaded import Preloaded

# `make test` makes the folder: one folder in it for each release.
FOLDER = os.environ.get("SRU_RELEASES", "")


class Oracle:
    """One release of `sru`, running."""

    def __init__(self, release: str) -> None:
        (requests, to), (answers, into) = os.pipe(), os.pipe()
        self._process = Preloaded(
            worker.__file__,
            release,
            streams=(requests, into, 2),
            environment={**os.environ, "PYTHONPATH": folder_of(release)},
        )
        os.close(requests)
        os.close(into)
        self._to, self._from = os.fdopen(to, "wb"), os.fdopen(answers, "rb")
        assert worker.read(self._from) == {"ready": True}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._to.close()
        self._process.wait(300)
        self._from.close()

    def run(
        self, calls: Sequence[dict[str, Any]], options: dict[str, Any], seed: int, name: str = "SRU"
    ) -> dict[str, Any]:
        """Make a module of class `name`, call it, and return what `worker.run` does."""
        request = {"class": name, "options": options, "seed": seed, "calls": list(calls)}
        worker.write(self._to, request)
        answer: dict[str, Any] = worker.read(self._from)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


def call(*arguments: Any, **keywords: Any) -> dict[str, Any]:
    """One call of a module."""
    return {"arguments": arguments, "keywords": keywords}


def folder_of(release: str) -> str:
    """The folder in which a release is installed."""
    return str((Path(FOLDER) / f"sru-{release}").absolute())


def needs(release: str) -> pytest.MarkDecorator:
    """Skip the test if a release is not installed; `make test` installs all of them."""
    installed = bool(FOLDER) and (Path(folder_of(release)) / "sru").is_dir()
    reason = f"needs sru {release} in SRU_RELEASES: `make test`"
    return pytest.mark.skipif(not installed, reason=reason)
