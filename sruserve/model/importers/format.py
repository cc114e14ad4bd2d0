"""The interface of every format: one library's checkpoints as networks of this package."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor

from sruserve.model.cells.stack import StackConfig
from sruserve.model.config import ModelConfig, architecture
from sruserve.model.embeddings import EmbeddingConfig
from sruserve.model.heads.config import HeadConfig
from sruserve.model.heads.regression import Regression
from sruserve.model.heads.row_layers import RowLayer
from sruserve.model.names import Task
from sruserve.model.reader.config import ReaderConfig

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Imported:
    """A checkpoint with the names of a model folder.

    tensors: float32, by a folder's names; a tied head has no matrix of its own.
    steps: at which steps the network answers, if its file describes the wiring. Then the head's
        pooling and layers are known, too.
    notes: remarks for the user.
    assumed: what the file leaves open, or says of another use, as parts of a line.
    reader: what is around a document reader's encoders. words: its vocabulary, in id order, if the
        file has it.
    reads_unknown_words: whether one id can stand for all words outside the vocabulary.
    """

    tensors: dict[str, Tensor]
    rnn: StackConfig
    vocab_size: int | None = None
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    input_width: int | None = None
    input_layers: tuple[RowLayer, ...] = ()
    steps: Literal["last", "every"] | None = None
    reader: ReaderConfig | None = None
    words: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    reads_unknown_words: bool = True


def config_of(
    imported: Imported,
    task: Task,
    head: Mapping[str, Any],
    labels: Mapping[int, str],
    regression: Regression | Mapping[str, Any] | None,
) -> ModelConfig:
    """Return the config of a complete network; raises `ValidationError`.

    head: fields of the head that replace those of the checkpoint.
    """
    fields = {
        "architectures": (architecture(imported.rnn, task),),
        "model_type": imported.rnn.family,
        "task": task,
        "vocab_size": imported.vocab_size,
        "id2label": labels,
        "input_width": imported.input_width,
        "input_layers": imported.input_layers,
        "rnn": imported.rnn,
        "embedding": imported.embedding,
        "head": imported.head.model_dump() | dict(head),
        "regression": regression,
        "reader": imported.reader,
    }
    return ModelConfig.model_validate(fields)


class Format(Protocol):
    """The functions of a module in `formats.FORMATS`."""

    def recognises(self, names: Collection[str]) -> bool:
        """Whether tensors of these names can only have this format."""
        ...

    def read(self, tensors: Mapping[str, Tensor], options: Options | None, task: Task) -> Imported:
        """Convert a state dict.

        options: the JSON object of `--options`, arguments of the library's own constructors; None
            without `--options`.
        task: the task of the imported model.

        Raises `CheckpointError` for tensors that cannot be used. Raises `OptionError` for options
        that cannot be used, and for a missing option that is needed, by its name.
        """
        ...


class FileFormat(Protocol):
    """The function of a module in `formats.FILE_FORMATS`."""

    def read(self, path: Path, options: Options | None, task: Task) -> Imported:
        """Convert a file that describes the wiring of its network.

        options: the JSON object of `--options`, without those of the head; None without it.

        Raises `CheckpointError` for a file that cannot be used, with the name of the layer that
        cannot be served, and `OptionError` for options that cannot be used.
        """
        ...
