"""A schema's numbers are kept to exactly, or refused by name."""

from typing import Any

import pytest

from sruserve.server.engine.constrained.constraint import Constraint
from sruserve.server.errors import InvalidRequest
from tests.server.engine.constrained.constraints import ALL

E53, E63 = 1 << 53, 1 << 63
INEXACT: list[tuple[str, Any]] = [
    ("const", E53 + 1), ("const", -E53 - 1), ("const", 10**18 + 1), ("const", E63), ("const", -E63),
    ("enum", ["a", 12345678901234567890123]), ("const", {"id": [E53 + 1]}), ("const", 10**400),
    ("minimum", E63 + 1), ("minimum", E53 + 1), ("minimum", 1e19), ("minimum", -E63),
    ("maximum", E53 + 3), ("maximum", -E53 - 1), ("maximum", -E63), ("maximum", -1e19),
    ("exclusiveMinimum", E53), ("exclusiveMaximum", -E53), ("exclusiveMaximum", 1e16),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), INEXACT, ids=lambda value: str(value)[:24])
def test_a_number_that_the_text_would_not_keep_to_is_refused_by_name(key: str, value: Any) -> None:
    for described in ({"type": "integer", key: value}, {"properties": {"id": {key: value}}}):
        with pytest.raises(InvalidRequest, match=f"followed exactly: '{key}' has") as refused:
            Constraint.json_schema(described, ALL)
        assert refused.value.code == "invalid_request"


EXACT: list[tuple[dict[str, Any], str]] = [
    ({"const": E53}, str(E53)), ({"const": -E53}, str(-E53)), ({"const": 10**18}, str(10**18)),
    ({"enum": [[True, 1 << 62]]}, f"[true,{1 << 62}]"), ({"const": 1e22}, str(10**22)),
    ({"type": "integer", "minimum": E63 - 1024, "maximum": E63 - 1024}, str(E63 - 1024)),
    ({"type": "integer", "exclusiveMinimum": E53 - 2, "exclusiveMaximum": E53}, str(E53 - 1)),
]  # fmt: skip


@pytest.mark.parametrize(("described", "text"), EXACT, ids=str)
def test_a_large_number_that_is_exact_is_written(described: dict[str, Any], text: str) -> None:
    assert Constraint.json_schema(described, ALL).completion == text.encode()


def test_the_bounds_of_unsigned_and_positive_integers_are_kept_to() -> None:
    for limit in (E63 - 1, (1 << 64) - 1):
        constraint = Constraint.json_schema(
            {"type": "integer", "minimum": 0, "maximum": limit}, ALL
        )
        assert constraint.begin(str(E63 - 1).encode()).ended
        with pytest.raises(InvalidRequest):
            constraint.begin(str(1 << 64).encode())


def test_numbers_that_bind_no_text_may_be_of_any_size() -> None:
    described = {"type": "integer", "default": E53 + 1, "examples": [10**30]}
    assert Constraint.json_schema(described, ALL).completion == b"0"
