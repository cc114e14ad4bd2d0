"""Check `--options`, also against the weights."""

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from sruserve.model.cells.stack import StackConfig
from sruserve.model.config import explain
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.format import Options
from sruserve.model.importers.shown import shown as shown

Config = TypeVar("Config", bound=StackConfig)

CORRECT = "correct the option, or leave it out"


def known(
    options: Options | None, names: Collection[str], dropped: Collection[str] = ()
) -> dict[str, Any]:
    """Return the options in `names`.

    dropped: options that are accepted but left out, because they matter only in training.

    Raises `OptionError` for any other name.
    """
    relevant = {name: value for name, value in (options or {}).items() if name not in dropped}
    for name in relevant:
        if name not in names:
            raise OptionError(
                f"--options: {shown(name)} is unknown; use {', '.join(sorted(names))}"
            )
    return relevant


def flag(options: Options, name: str, default: bool) -> bool:
    """Return an option that is true or false; constructors also accept 0 and 1."""
    value = options.get(name, default)
    if value not in (True, False):
        raise OptionError(f"--options: {name} is {shown(value)}; it must be true or false")
    return bool(value)


def agree(arguments: Options, from_weights: Mapping[str, Any]) -> dict[str, Any]:
    """Merge both; raise `CheckpointError` if an option contradicts the weights."""
    for name, value in from_weights.items():
        stated = arguments.get(name, value)
        if isinstance(stated, list):
            stated = tuple(stated)
        if stated != value:
            raise CheckpointError(
                f"option {name} is {shown(stated)}; the weights say {value}: {CORRECT}"
            )
    return {**arguments, **from_weights}


def make(kind: type[Config], fields: Mapping[str, Any]) -> Config:
    """Make a stack's config, or raise `OptionError` that names every invalid field."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise OptionError(f"--options: {explain(error)}") from error
