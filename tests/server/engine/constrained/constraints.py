"""Constraints of the tests."""

import string
from typing import Any

from sruserve.model.text.byte_values import Bytes
from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.constraint import Constraint
from tests.server.engine.driver import Driver

ALL = ByteVocabulary.of(Bytes(list(range(256))))


LETTERS = [ord(c) for c in string.ascii_lowercase + " ,.3" if c != "q"]


def regex(driver: Driver, pattern: str) -> Constraint:
    return Constraint.regex(pattern, ByteVocabulary.of(driver.model.codec))


def schema(driver: Driver, described: object) -> Constraint:
    return Constraint.json_schema(described, ByteVocabulary.of(driver.model.codec))


SCHEMAS: list[Any] = [
    {"type": "integer", "minimum": 3, "maximum": 41},
    {"enum": ["abc", "axq", 7, None]},
    {"type": "string", "minLength": 2, "maxLength": 9},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4},
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "n": {"type": "integer"}},
        "required": ["name", "n"],
        "additionalProperties": False,
    },
    {"anyOf": [{"const": "é"}, {"type": "array", "items": {"const": 1}, "maxItems": 2}]},
    {"type": "string", "format": "date"},
    {"type": "string", "pattern": "^[a-f]+@[a-f]{2}$"},
]
