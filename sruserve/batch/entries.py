"""Turn records into requests: of our own fields, or lines of OpenAI's batches."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sruserve.batch.records import Record, Texts
from sruserve.server.errors import InvalidRequest, MalformedBody, ServeError, WrongTask
from sruserve.server.tasks.complete import CompleteTask
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.embed import EmbedTask
from sruserve.server.tasks.requests import ModelRequest
from sruserve.server.tasks.score import ScoreTask
from sruserve.server.tasks.table import TABLE, AnyTask, default_tasks

_TASKS: dict[str, type[AnyTask]] = {**default_tasks(), "score": ScoreTask, "embed": EmbedTask}
# A message names the route of most lines first.
_IN_ORDER: tuple[type[AnyTask], ...] = (CompleteTask, *TABLE)
_ROUTES = {f"/v1/{task.route}": task.schema for task in _IN_ORDER if task.route is not None}
CONTENTS = ("input", "pair", "features", "question", "context")


@dataclass(slots=True)  # not frozen, which would make each of many lines slower
class Entry:
    """The request of one line.

    custom_id: that of a line of OpenAI's batches; None for lines of our own.
    id: the field `id` of a line of our own, to be repeated; None without one.
    fields: those of the schema. size: their characters, ids and numbers, about.
    key: equal for lines that one request can ask together, which have one input each; None: this
        line is a request of its own.
    problem: why there is no request.
    """

    line: int
    schema: type[ModelRequest]
    fields: Mapping[str, Any]
    size: int
    custom_id: str | None = None
    id: Any = None
    key: str | None = None
    problem: ServeError | None = None


class EntryReader:
    """Reads records as requests to one model.

    task: that of the model, or `score` or `embed`. model: its name. options: fields that each
    line of our own has, unless it sets them itself. Raises `InvalidRequest` for one that no line
    can have.
    """

    def __init__(self, task: str, model: str, options: Mapping[str, Any]) -> None:
        _check_whole(options)
        self._schema, self._model, self._options = _TASKS[task].schema, model, options
        self._text = "prompt" if self._schema is CompletionRequest else "input"
        self._text_key = self._key(self._schema, {**options, self._text: ""})
        self.options_size = _size(options)

    def read(self, record: Record) -> Entry:
        """Return the request of a record; an invalid one has a problem."""
        value = record.value
        if isinstance(value, str):
            fields = {**self._options, self._text: value}
            size = self.options_size + len(value)
            return Entry(record.line, self._schema, fields, size, None, None, self._text_key)
        if record.problem is not None:
            return Entry(record.line, self._schema, {}, 0, problem=MalformedBody(record.problem))
        if isinstance(value, dict) and "custom_id" in value:
            return self._openai(record.line, value)
        if not isinstance(value, dict):
            value = {"features" if _is_rows(value) else self._text: value}
        fields = {**self._options, **value}
        own_id = fields.pop("id", None)
        try:
            self._check(fields)
        except ServeError as error:
            return Entry(record.line, self._schema, {}, 0, id=own_id, problem=error)
        key = self._key(self._schema, fields)
        return Entry(record.line, self._schema, fields, _size(fields), id=own_id, key=key)

    def read_texts(self, texts: Texts) -> "TextEntries | list[Entry]":
        """Return the requests of texts."""
        entries = TextEntries(self, texts)
        return list(entries) if self._text_key is None else entries

    def _openai(self, line: int, value: dict[str, Any]) -> Entry:
        custom_id, body, url = str(value["custom_id"]), value.get("body"), value.get("url")
        schema = _ROUTES.get(url) if isinstance(url, str) else None
        try:
            if schema is None:
                raise InvalidRequest(f"'url' must be one of {', '.join(_ROUTES)}", param="url")
            if value.get("method", "POST") != "POST":
                raise InvalidRequest("'method' must be POST", param="method")
            if not isinstance(body, dict):
                raise InvalidRequest("'body' must be a JSON object", param="body")
            fields = dict(body)
            self._check(fields)
        except ServeError as error:
            return Entry(line, schema or self._schema, {}, 0, custom_id, problem=error)
        key = self._key(schema, fields)
        return Entry(line, schema, fields, _size(fields), custom_id, key=key)

    def _check(self, fields: dict[str, Any]) -> None:
        """Drop the field `model`; raises if it names another one, or if the line would stream."""
        _check_whole(fields)
        name = fields.pop("model", None)
        if name not in (None, self._model):
            raise WrongTask(
                f"the line asks for the model {str(name)[:100]!r}, and this run has {self._model}",
                param="model",
            )

    def _key(self, schema: type[ModelRequest], fields: Mapping[str, Any]) -> str | None:
        if schema is CompletionRequest:
            return None  # a seed counts from the first prompt of a request
        kinds = {name: _kind(fields[name]) for name in CONTENTS if name in fields}
        if None in kinds.values():
            return None
        rest = {name: value for name, value in fields.items() if name not in kinds}
        return f"{schema.__name__} {kinds} {json.dumps(rest, sort_keys=True)}"


class TextEntries(Sequence[Entry]):
    """The requests of texts, with one key. They are one request, so nobody needs each `Entry`.

    lines: their numbers. texts: the inputs. size: of all together.
    """

    def __init__(self, reader: EntryReader, texts: Texts) -> None:
        self._reader, self._texts = reader, texts
        self.texts, self.lines = texts.texts, range(texts.line, texts.last + 1)

    @property
    def size(self) -> int:
        return sum(map(len, self.texts)) + len(self.texts) * self._reader.options_size

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            lines = self.lines[index]
            return TextEntries(self._reader, Texts(lines.start, self.texts[index]))
        return self._reader.read(Record(self.lines[index], self.texts[index]))


def lines_of(entries: Sequence[Entry]) -> Sequence[int]:
    """Return the numbers of the lines of entries."""
    if isinstance(entries, TextEntries):
        return entries.lines
    return [entry.line for entry in entries]


def size_of(entries: Sequence[Entry]) -> int:
    """Return the size of entries together."""
    if isinstance(entries, TextEntries):
        return entries.size
    return sum(entry.size for entry in entries)


def contents_of(entries: Sequence[Entry], field: str) -> Sequence[Any]:
    """Return the inputs of entries, which are in a field of each."""
    if isinstance(entries, TextEntries):
        return entries.texts
    return [entry.fields[field] for entry in entries]


def are_bare(entries: Sequence[Entry]) -> bool:
    """Whether each line has one input, and its answer only the result."""
    return isinstance(entries, TextEntries) or all(
        entry.key is not None and entry.custom_id is None and entry.id is None for entry in entries
    )


def _check_whole(fields: Mapping[str, Any]) -> None:
    if fields.get("stream"):
        raise InvalidRequest("a line cannot stream: leave 'stream' out", param="stream")


def _kind(value: Any) -> str | None:
    """Return the kind of one input; None for a list of inputs, and for anything else."""
    if isinstance(value, str):
        return "text"
    if _is_list_of(value, int):
        return "ids"
    return "features" if _is_rows(value) else None


def _is_rows(value: Any) -> bool:
    """Whether a value is one sequence of features."""
    return _is_list_of(value, list) and _is_list_of(value[0], (int, float))


def _is_list_of(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], kind)


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list):
        return (
            4 * len(value)
            if not value or not isinstance(value[0], list | str)
            else sum(map(_size, value))
        )
    return 4
