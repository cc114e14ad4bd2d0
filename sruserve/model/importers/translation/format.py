"""The interface of every format of translation systems, and the list of all."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from pydantic import BaseModel, ValidationError
from torch import Tensor

from sruserve.model.config import explain
from sruserve.model.errors import OptionError
from sruserve.model.importers.format import Options
from sruserve.model.translation.recurrent_config import RecurrentConfig
from sruserve.model.translation.transformer_config import TransformerSRUConfig

System = TransformerSRUConfig | RecurrentConfig


@dataclass(frozen=True)
class ImportedSystem:
    """A checkpoint with the names of a model folder.

    tensors: float32, named as in `System.shapes`. source_size, target_size: numbers of ids.
    notes: remarks for the user. assumed: what the file leaves open.
    """

    tensors: dict[str, Tensor]
    system: System
    source_size: int
    target_size: int
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


class TranslationFormat(Protocol):
    """The functions of a module of a format in `formats.TRANSLATION_FORMATS`."""

    def recognises(self, names: Collection[str]) -> bool:
        """Whether tensors of these names can only have this format."""
        ...

    def read(self, tensors: Mapping[str, Tensor], options: Options) -> ImportedSystem:
        """Convert a state dict.

        options: the JSON object of `--options`, without those of the vocabularies.

        Raises `CheckpointError` for tensors, and `OptionError` for options that cannot be used.
        """
        ...


def load_translation_format(module: str) -> TranslationFormat:
    """Import the module of a format."""
    return cast("TranslationFormat", import_module(module))


def make_system(kind: type[BaseModel], fields: Mapping[str, Any]) -> Any:
    """Make a system's config, or raise `OptionError` that names every invalid field."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise OptionError(f"--options: {explain(error)}") from error


def without_equal(tensors: dict[str, Tensor], name: str, other: str) -> bool:
    """Remove a tensor that equals another one in every number; returns whether it did."""
    first, second = tensors.get(name), tensors.get(other)
    if first is None or second is None or first.shape != second.shape:
        return False
    if not bool((first == second).all()):
        return False
    del tensors[name]
    return True
