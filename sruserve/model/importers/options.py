"""What `--options` says, against what the weights say."""

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from sruserve.model.cells.stack import StackConfig
from sruserve.model.config import explain
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.origin import Options

Config = TypeVar("Config", bound=StackConfig)


def known(
    options: Options | None, names: Collection[str], dropped: Collection[str] = ()
) -> dict[str, Any]:
    """The options that matter. `dropped` are accepted and left out: they matter in training only.

    Raises `OptionError` for any other name.
    """
    given = {name: value for name, value in (options or {}).items() if name not in dropped}
    for name in given:
        if name not in names:
            raise OptionError(
                f"--options: {shown(name)} is not expected; known are {', '.join(sorted(names))}"
            )
    return given


def flag(options: Options, name: str, default: bool) -> bool:
    """An option that is true or false, as JSON or as the 0 and 1 that constructors take too."""
    value = options.get(name, default)
    if value not in (True, False):
        raise OptionError(f"--options: {name} must be true or false")
    return bool(value)


def agree(given: Options, found: Mapping[str, Any]) -> dict[str, Any]:
    """`given` and `found` together; `CheckpointError` where an option contradicts the weights."""
    for name, value in found.items():
        said = given.get(name, value)
        if isinstance(said, list):
            said = tuple(said)
        if said != value:
            raise CheckpointError(f"option {name} is {shown(said)}; the weights say {value}")
    return {**given, **found}


def make(kind: type[Config], fields: Mapping[str, Any]) -> Config:
    """A stack's config, or `OptionError` with every field that is wrong."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise OptionError(f"--options: {explain(error)}") from error


def shown(value: object) -> str:
    """A value from outside, short enough for a message."""
    text = str(value)
    return text if len(text) <= 80 else text[:79] + "…"
