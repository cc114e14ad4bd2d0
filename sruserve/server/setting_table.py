"""The table of settings for `sruserve settings` and docs/settings.md."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from sruserve.server.field_bounds import setting_bounds
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
        default = _text(field.default)
        yield Row(variable_name(name), default, setting_bounds(field), field.description or "")


def changed_values(settings: Settings) -> dict[str, str]:
    """The values that are not defaults, by variable; secrets are not shown."""
    return {
        variable_name(name): _text(getattr(settings, name))
        for name, field in Settings.model_fields.items()
        if getattr(settings, name) != field.default
    }


def _text(value: Any) -> str:
    """A value in words; empty for an unset one."""
    if isinstance(value, SecretStr):
        return "(a secret, not shown)"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return "" if value is None else str(value)
