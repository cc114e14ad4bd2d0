"""JSON schemas: the limits that bound their compilation, and the patterns of their strings."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.grammar import grammar_error
from sruserve.server.engine.constrained.patterns import ANY_TEXT, pattern_matcher, shortest_match
from sruserve.server.engine.constrained.schema_numbers import check_numbers
from sruserve.server.errors import ConstraintUnsatisfiable, InvalidRequest

_MAX_SCHEMA_LENGTH = 32_768  # characters
_MAX_PATTERNS = 64  # in a schema


def schema_text(schema: object) -> str:
    """A schema as JSON text; raises if compiling it could take an unbounded time."""
    if isinstance(schema, bool):
        if not schema:
            raise ConstraintUnsatisfiable("no JSON matches the schema 'false': send another one")
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidRequest("a JSON schema must be an object, true or false")
    try:
        text = json.dumps({k: v for k, v in schema.items() if k != "x-guidance"}, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise grammar_error(str(error)) from None
    if len(text) > _MAX_SCHEMA_LENGTH:
        raise InvalidRequest(
            f"a schema may have {_MAX_SCHEMA_LENGTH} characters of JSON at most; simplify it"
        )
    check_numbers(_members(schema))
    patterns = [v for key, v in _members(schema) if key == "pattern" and isinstance(v, str)]
    if len(patterns) > _MAX_PATTERNS:
        raise InvalidRequest(f"a schema may have {_MAX_PATTERNS} patterns at most; simplify it")
    for pattern in patterns:
        try:
            pattern_matcher(pattern, ANY_TEXT)
        except InvalidRequest as error:
            error.message = error.message.replace("the regex", "the regex in 'pattern'", 1)
            raise
    return text


def pattern_strings(schema: object, vocabulary: ByteVocabulary) -> tuple[bytes, ...]:
    """The insides of short JSON strings that have matches of a schema's patterns.

    One for each string or name of a member that has patterns, and one with all of these together.
    """
    strings: dict[bytes, None] = {}
    for patterns, min_length, max_length in islice(_patterned(schema), _MAX_PATTERNS):
        whole = len(patterns) == 1 and not min_length
        expressions = patterns if whole else [_found_anywhere(pattern) for pattern in patterns]
        text = shortest_match(
            expressions, vocabulary, in_json=True, min_length=min_length, max_length=max_length
        )
        strings[json.dumps(text, ensure_ascii=False)[1:-1].encode()] = None
    strings[b"".join(strings)] = None
    return tuple(string for string in strings if string)


def _patterned(schema: object) -> Iterator[tuple[list[str], int, int | None]]:
    """The patterns of each string that has any, with its minimum and maximum length."""
    for node in _objects(schema):
        parts = _conjunction(node)
        patterns = [part["pattern"] for part in parts if isinstance(part.get("pattern"), str)]
        if patterns:
            min_length = max(_lengths(parts, "minLength"), default=0)
            yield patterns, min_length, min(_lengths(parts, "maxLength"), default=None)
        names = node.get("patternProperties")
        if isinstance(names, dict):
            yield from (([name], 0, None) for name in names)


def _conjunction(node: dict[str, Any]) -> list[dict[str, Any]]:
    """A schema and all those that `allOf` adds to it."""
    parts = [node]
    for part in parts:
        added = part.get("allOf")
        if isinstance(added, list):
            parts += [inner for inner in added if isinstance(inner, dict)]
    return parts


def _lengths(parts: list[dict[str, Any]], key: str) -> list[int]:
    return [int(part[key]) for part in parts if type(part.get(key)) in (int, float)]


def _found_anywhere(pattern: str) -> str:
    """A pattern of whole texts that have a match, as far as anchors begin and end it."""
    before = "" if pattern.startswith("^") else ANY_TEXT
    after = "" if pattern.endswith("$") else ANY_TEXT
    return f"{before}(?:{pattern}){after}"


def _members(schema: object) -> Iterator[tuple[str, Any]]:
    """All members of all objects in a schema."""
    for node in _objects(schema):
        yield from node.items()


def _objects(schema: object) -> Iterator[dict[str, Any]]:
    """All objects in a schema."""
    remaining = [schema]
    while remaining:
        node = remaining.pop()
        if isinstance(node, dict):
            yield node
            remaining += node.values()
        elif isinstance(node, list):
            remaining += node
