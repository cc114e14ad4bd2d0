"""Run lines through a loaded model, as `sruserve run` does."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sruserve.api.local_model import LocalModel
from sruserve.batch.entries import EntryReader
from sruserve.batch.opening import open_output
from sruserve.batch.records import Format, records
from sruserve.batch.run import Run, skip
from sruserve.batch.source import Source


def run(
    model: LocalModel,
    content: bytes,
    output: Path,
    format: str = "jsonl",  # noqa: A002
    task: str | None = None,
    options: Mapping[str, Any] | None = None,
    column: str | None = None,
    max_row_parts: int = 1 << 20,
    **bounds: int,
) -> None:
    """Answer lines, from where the output ends; its errors are beside it. bounds: of `Source`."""
    source = Source(io.BytesIO(content), **bounds)
    lines = records(source, Format(format), column, max_row_parts)
    reader = EntryReader(task or model.served.model.config.task, model.served.name, options or {})
    made_of = {"model": model.served.model.digest}
    written, journal, before = open_output(output, made_of)
    try:
        lines = skip(before, written, source, lines)
        model.loop.run(Run(model, source, lines, reader, written, made_of, journal)())
    finally:
        written.close()


def answers(output: Path) -> list[dict[str, Any]]:
    """The lines of an output."""
    return [json.loads(line) for line in output.read_bytes().splitlines()]


def errors(output: Path) -> list[dict[str, Any]]:
    """The lines of the file of errors."""
    path = output.with_name(f"{output.name}.errors")
    return answers(path) if path.exists() else []


def jsonl(*values: Any) -> bytes:
    """Values as lines of JSON."""
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)
