"""The results of sruserve's tasks as plain values, of which chunks' can be joined."""

from collections.abc import Mapping
from typing import Any

from sruserve.check.protocols.fields import field, objects
from sruserve.check.results import Result, Values, flatten

_TOKEN = ("label", "score")


def task_result(task: str, entry: Mapping[str, Any]) -> Result:
    """An entry of `results`. Places of tokens are those of a request, so they are left out."""
    if task == "tag":
        tokens = objects(entry, "tokens")
        parts = {name: tuple(flatten([t.get(name) for t in tokens])) for name in _TOKEN}
        return Result(parts, frozenset(parts))
    if task == "answer":
        answers = objects(entry, "answers")
        names = ("text", "start", "end", "score")
        return Result({n: tuple(flatten([each.get(n) for each in answers])) for n in names})
    if task == "encode":
        return Result({"outputs": flatten(field(entry, "outputs", list))}, frozenset({"outputs"}))
    if task == "regress":
        values: dict[str, Values] = {"values": flatten(entry.get("values"))}
        if entry.get("steps") is not None:
            values["steps"] = flatten(entry["steps"])
        return Result(values, frozenset({"steps"}) & values.keys())
    if task == "translate":
        text, ids = entry.get("text"), entry.get("token_ids")
        characters = tuple(text) if isinstance(text, str) else flatten(text or [])
        written = {"text": characters, "token_ids": flatten(ids or [])}
        of_last = ("finish_reason", "score", "log_probability")
        ends = {name: flatten(entry.get(name)) for name in of_last}
        return Result({**written, **ends}, frozenset(written))
    return Result({name: flatten(entry.get(name)) for name in ("label", "score", "scores")})
