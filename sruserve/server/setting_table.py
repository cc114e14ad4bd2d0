"""The table of settings for `sruserve settings` and docs/settings.md."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from pydantic.fields import FieldInfo

from sruserve.server.settings import Settings, variable_name


@dataclass(frozen=True, slots=True)
class Row:
    """One setting in words; an empty default means unset."""

    variable: str
    default: str
    allowed: str
    meaning: str


def setting_rows() -> Iterator[Row]:
    """All settings in their order."""
    for name, field in Settings.model_fields.items():
        default = "" if field.default in (None, ()) else str(field.default)
        yield Row(variable_name(name), default, _allowed(field), field.description or "")


def _allowed(field: FieldInfo) -> str:
    """The allowed values of a setting, if its type does not determine them."""
    if field.annotation is bool:
        return "true, false"
    words = [word for word in get_args(field.annotation) if isinstance(word, str)]
    if words:
        return ", ".join(words)
    bounds = {}
    for bound in field.metadata:
        for side in ("gt", "ge", "le"):
            if hasattr(bound, side):
                bounds[side] = getattr(bound, side)
    if field.annotation is int and "gt" in bounds:
        bounds["ge"] = bounds.pop("gt") + 1
    if "ge" in bounds and "le" in bounds:
        return f"{bounds['ge']} to {bounds['le']}"
    if "ge" in bounds:
        return f"from {bounds['ge']}"
    return f"above {bounds['gt']}" if "gt" in bounds else ""
