"""A server process whose log lines are JSON, in two files."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.preloaded import Preloaded
from tests.server.observing import until
from tests.server.processes import is_ready


class JsonServer:
    """lines: of standard error; requests: of standard output."""

    def __init__(self, process: Preloaded, folder: Path) -> None:
        self.process, self._folder = process, folder

    @property
    def output(self) -> str:
        """All that the process has written."""
        return "".join((self._folder / name).read_text() for name in ("out", "err"))

    @property
    def lines(self) -> list[dict[str, Any]]:
        return _read(self._folder / "err")

    @property
    def requests(self) -> list[dict[str, Any]]:
        return _read(self._folder / "out")

    def logged(self, pattern: str) -> str:
        """A part of a message, once it is there."""
        matches: list[str] = []

        def look() -> bool:
            assert self.process.poll() is None, self.output
            matches.extend(re.findall(pattern, self.output))
            return bool(matches)

        until(look)
        return matches[0]


def _read(file: Path) -> list[dict[str, Any]]:
    """Every line, each of which must be an object in JSON."""
    return [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]


@contextmanager
def json_server(
    folder: Path,
    *models: Path,
    program: Sequence[str] = ("-m", "sruserve"),
    stdout: int | None = None,
    **settings: str,
) -> Iterator[tuple[httpx.Client, JsonServer]]:
    """A server that is ready; it is killed at the end if it has not stopped."""
    variables = {f"SRUSERVE_{name.upper()}": value for name, value in settings.items()}
    variables |= {"SRUSERVE_PORT": "0", "SRUSERVE_STATE_POOL_BYTES": "1000000"}
    with (
        open(os.devnull) as nothing,
        (folder / "out").open("wb") as out,
        (folder / "err").open("wb") as err,
    ):
        output = out.fileno() if stdout is None else stdout
        process = Preloaded(
            *(*program, "serve", *map(str, models)),
            streams=(nothing.fileno(), output, err.fileno()),
            environment=os.environ | {"SRUSERVE_LOG_FORMAT": "auto"} | variables,
        )
    server = JsonServer(process, folder)
    try:
        url = server.logged(r'starting on (https?://[^ "]+)')
        with httpx.Client(base_url=url, timeout=60, verify=False) as client:
            until(lambda: is_ready(client))
            yield client, server
    finally:
        process.kill()
        process.wait(60)
