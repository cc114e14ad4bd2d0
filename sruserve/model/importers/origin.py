"""What every file of this package gives: one library's checkpoints as networks of ours."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from sruserve.model.cells.stack import StackConfig
from sruserve.model.embeddings import EmbeddingConfig
from sruserve.model.heads import HeadConfig
from sruserve.model.names import Task

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Imported:
    """A checkpoint in the terms of a model folder.

    tensors: float32, named as a folder names them; a tied head has no matrix of its own.
    """

    tensors: dict[str, Tensor]
    rnn: StackConfig
    vocab_size: int | None = None
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    head: HeadConfig = field(default_factory=HeadConfig)


class Origin(Protocol):
    """The functions of a module that `origins.ORIGINS` names."""

    def recognises(self, names: Collection[str]) -> bool:
        """Whether tensors of these names can only be of this origin."""
        ...

    def read(self, tensors: Mapping[str, Tensor], options: Options | None, task: Task) -> Imported:
        """Convert a state dict.

        options: the JSON object of `--options`, in the names of the origin's own constructors;
            None where it was not given.

        Raises `CheckpointError` for tensors and `OptionError` for options that cannot be used,
        and for an option that is needed: it is asked for by name.
        """
        ...
