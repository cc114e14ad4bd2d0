"""The table of settings for `sruserve settings` and docs/settings.md."""

from collections.abc import Iterator
from dataclasses import dataclass

from sruserve.server.setting_bounds import bounds
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
        yield Row(variable_name(name), default, bounds(field), field.description or "")
