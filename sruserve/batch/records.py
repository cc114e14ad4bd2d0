"""Turn the lines of an input into records: texts, JSON values, or rows of CSV."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic_core import from_json

from sruserve.batch.errors import InputError
from sruserve.batch.source import MAX_LINE_BYTES, Source
from sruserve.server.json_limits import PARTS, JsonBounds, json_excess

# They keep the memory of a line below half a gigabyte.
_JSON_BOUNDS = JsonBounds(containers=1 << 18, values=1 << 22, digits=MAX_LINE_BYTES)
_MAX_ROW_PARTS = 1 << 20
_TEXT_COLUMNS = ("text", "input", "prompt")


class Format(StrEnum):
    """The formats of an input."""

    LINES = "lines"
    JSONL = "jsonl"
    CSV = "csv"


@dataclass(slots=True)
class Texts:
    """Texts on lines that follow each other. line: the number of the first one."""

    line: int
    texts: list[str]

    @property
    def last(self) -> int:
        """The number of the last line."""
        return self.line + len(self.texts) - 1

    def after(self, line: int) -> "Texts":
        """Return those after a line."""
        begin = max(self.line, line + 1)
        return Texts(begin, self.texts[begin - self.line :])


@dataclass(slots=True)
class Record:
    """What one line of an input has.

    line: its number, from 1; of a row of CSV with several lines, that of the last one.
    value: a text, or any value of JSON. problem: why it has none.
    """

    line: int
    value: Any = None
    problem: str | None = None

    @property
    def last(self) -> int:
        """The number of its last line."""
        return self.line


def records(
    source: Source,
    format: Format,  # noqa: A002
    column: str | None,
    max_row_parts: int = _MAX_ROW_PARTS,
) -> Iterator[Record | Texts]:
    """Yield the records of an input in their order; blank lines of JSON and CSV are skipped.

    Lines of text come together, up to a block of `Source`.

    column: the column of CSV with the text, or the field of JSON objects; None: a column `text`,
    `input` or `prompt`, or the only one; whole JSON values.
    max_row_parts: commas and lines of a row of CSV, which has no more fields.

    Raises `InputError` for CSV without that column.
    """
    if format is Format.CSV:
        yield from _rows(source, column, max_row_parts)
        return
    together = format is Format.LINES
    for lines in source.blocks() if together else source:
        number = source.line
        if lines is None:
            yield Record(number, problem=f"the line has more than {source.max_line_bytes:,} bytes")
        elif together:
            yield _texts(number, lines)
        elif not lines.isspace():
            yield _json(number, lines, column)


def _texts(last: int, lines: bytes) -> Record | Texts:
    """Return the texts of lines, or why a single one has none. last: the number of the last."""
    try:
        texts = lines.removesuffix(b"\n").decode().split("\n")
    except UnicodeDecodeError as error:
        return Record(last, problem=f"the line is not UTF-8: {error.reason}")
    if b"\r" in lines:
        texts = [text.removesuffix("\r") for text in texts]
    return Texts(last - len(texts) + 1, texts)


def _json(number: int, line: bytes, column: str | None) -> Record:
    excess = json_excess(line, _JSON_BOUNDS)
    if excess is not None:
        limit = f"{_JSON_BOUNDS[excess]:,} {PARTS[excess]}"
        return Record(number, problem=f"the line has more than {limit}: split it")
    try:
        value = from_json(line)  # unlike Python's own, it refuses lone surrogates
    except ValueError as error:
        return Record(number, problem=f"the line is not valid JSON: {error}")
    if column is None:
        return Record(number, value)
    if not isinstance(value, dict) or column not in value:
        return Record(number, problem=f"the line has no field {column!r}")
    return Record(number, value[column])


def _rows(source: Source, column: str | None, max_row_parts: int) -> Iterator[Record]:
    csv.field_size_limit(source.max_line_bytes)
    lines = _RowLines(source, max_row_parts)
    rows = csv.reader(lines)
    place: int | None = None
    while True:
        lines.begin_row()
        try:
            row = next(rows, None)
        except (csv.Error, InputError) as error:
            if place is None:
                raise InputError(f"the head of the CSV cannot be read: {error}") from error
            yield Record(source.line, problem=f"the row cannot be read: {error}")
            continue
        if row is None:
            return
        if place is None:
            place = _place(row, column)
        elif row and place < len(row):
            yield _cell(source.line, row[place])
        elif row:
            problem = f"the row has {len(row)} columns; the text is column {place + 1}"
            yield Record(source.line, problem=problem)


class _RowLines:
    """The lines of a source as texts, for one row of CSV after the other, each of bounded size.

    It is no generator, which would end with its first error.
    """

    def __init__(self, source: Source, max_row_parts: int) -> None:
        self._source, self._lines = source, iter(source)
        self._max_bytes, self._max_parts = source.max_line_bytes, max_row_parts
        self.begin_row()

    def begin_row(self) -> None:
        """Begin a row: only its own lines count."""
        self._bytes = self._parts = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        if line is None:
            raise InputError(
                f"a line has more than {self._max_bytes:,} bytes: split it into several lines"
            )
        self._bytes += len(line)
        self._parts += line.count(b",") + 1
        if self._bytes > self._max_bytes or self._parts > self._max_parts:
            raise InputError(
                f"it has more than {self._max_bytes:,} bytes, or {self._max_parts:,} commas and "
                "lines"
            )
        return line.decode("utf-8-sig" if self._source.line == 1 else "utf-8", "surrogateescape")


def _cell(number: int, text: str) -> Record:
    try:
        text.encode()
    except UnicodeEncodeError:  # of what `_RowLines` could not decode
        return Record(number, problem="the row is not UTF-8")
    return Record(number, text)


def _place(head: list[str], column: str | None) -> int:
    """Return the number of the column with the text."""
    names = [name.strip() for name in head]
    accepted = _TEXT_COLUMNS if column is None else (column,)
    place = next((names.index(name) for name in accepted if name in names), None)
    if place is None and column is None and len(names) == 1:
        place = 0
    if place is None:
        raise InputError(
            f"the CSV has no column {' or '.join(accepted)}, but {', '.join(names)[:200]}: name "
            "the one with the text by --column"
        )
    return place
