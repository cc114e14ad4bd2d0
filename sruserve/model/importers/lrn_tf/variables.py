"""The network's own variables among all those of a training run."""

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from torch import Tensor

from sruserve.model.errors import CheckpointError
from sruserve.model.files import read_regular
from sruserve.model.importers.options import shown
from sruserve.model.importers.tensorflow.bundle import Bundle

FROZEN = "general_symbol_embeddings"  # if its rows are pretrained, they are not trained
_ANCHOR = "special_symbol_embeddings"  # every network of the repository's doc and nli has it
_AVERAGE = "/ExponentialMovingAverage"
_TRAINING = re.compile(
    r"(.*/)?((Adam|ExponentialMovingAverage|CTrainOp(BackUp)?Replica)(_[0-9]+)?"
    r"|beta[12]_power|global_step)"
)
_SUFFIX = re.compile(r"(?<=.)\.(index|meta|data-[0-9]{5}-of-[0-9]{5})$")
_STATE_FILE = "checkpoint"
_LARGEST_STATE = 1 << 20  # bytes
ADVICE = (
    "Of TensorFlow's checkpoints, only those of the LRN repository's doc/ are read. For any other "
    "network, load it in TensorFlow and save a Keras model with model.save('model.keras'), or copy "
    "its weights into the same network in PyTorch and save a state dict"
)
_SHOWN = 6

# A part of a variable's name, and what the network does that has it.
_OTHERS = {
    "/match/": "of nli/: its second recurrent network starts from the first one's state and "
    "attends to the first sentence at every step, which cannot be served",
    "/sent_level/": "of a network with enable_hierarchy: it reads the words of each sentence, then "
    "the sentences, which cannot be served",
    "/bert": "of a network with enable_bert: it reads the outputs of a BERT, which cannot be "
    "served",
    "/ln_0_0/": "of a network with layer_norm: its attention and its labels are normalised, too, "
    "which cannot be served",
}
_READERS = {"word_mat", "is_train"}  # of rc/


def find(path: Path) -> Path:
    """Return the path of a checkpoint without `.index`.

    path: any of its files, their common beginning, the file `checkpoint`, or its folder.

    Raises `CheckpointError` for a file `checkpoint` that names none.
    """
    if os.path.isdir(path):  # where the folder cannot be seen, reading it has the message
        path = path / _STATE_FILE
    if path.name != _STATE_FILE:
        return path.with_name(_SUFFIX.sub("", path.name))
    try:
        lines = read_regular(path, _LARGEST_STATE).decode(errors="replace").splitlines()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    match = re.fullmatch(r'model_checkpoint_path: *"([^"\\]+)"', lines[0].strip() if lines else "")
    if match is None or not (name := Path(match[1]).name) or name == "..":
        raise CheckpointError(f"{path} names no checkpoint: import its .index file instead")
    return path.with_name(name)


class Variables:
    """The variables that the network computes with, by their names after the network's own.

    averaged: whether their moving averages are read where the training kept some.
    """

    def __init__(self, bundle: Bundle, ema_decay: float | None) -> None:
        self._bundle = bundle
        self._names = _own_names(bundle.shapes)
        stored = {name for name in self._names if self._scope + name + _AVERAGE in bundle.shapes}
        self.averaged = bool(stored) if ema_decay is None else ema_decay > 0
        missing = set(self._names) - stored - {FROZEN}
        if self.averaged and missing:
            raise CheckpointError(
                f"{_some(missing)} have no moving average in the checkpoint, though ema_decay says "
                'that the training kept them: pass {"ema_decay": 0} for the weights themselves'
            )
        self._averages = stored if self.averaged else set()

    @property
    def names(self) -> Collection[str]:
        return self._names

    @property
    def _scope(self) -> str:
        return next(
            name.removesuffix(_ANCHOR)
            for name in self._bundle.shapes
            if name.split("/")[-1] == _ANCHOR
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a variable's shape; raises `CheckpointError` if it is missing."""
        shape = self._bundle.shapes.get(self._scope + name)
        if shape is None:
            raise CheckpointError(f"the variable {shown(name)} is missing. {ADVICE}")
        return shape

    def size(self, name: str) -> int:
        """Return the length of a variable that must be a vector; raises `CheckpointError`."""
        shape = self.shape(name)
        if len(shape) != 1 or not shape[0]:
            raise CheckpointError(
                f"{shown(name)} has shape {list(shape)}; it must be a vector, not empty. {ADVICE}"
            )
        return shape[0]

    def read(self, name: str, *shape: int) -> Tensor:
        """Read a variable of a shape; raises `CheckpointError`."""
        if self.shape(name) != shape:
            raise CheckpointError(
                f"{shown(name)} has shape {list(self.shape(name))}, not {list(shape)}. {ADVICE}"
            )
        average = _AVERAGE if name in self._averages else ""
        tensor = self._bundle.tensor(self._scope + name + average)
        if tensor.shape != shape:
            raise CheckpointError(
                f"the moving average of {shown(name)} does not have its shape: pass "
                '{"ema_decay": 0} in --options for the weights themselves'
            )
        return tensor


def _own_names(names: Iterable[str]) -> list[str]:
    """Return the names of the network's variables; raises `CheckpointError` for another network."""
    trained = [name for name in names if not _TRAINING.fullmatch(name)]
    anchors = [name for name in trained if name.split("/")[-1] == _ANCHOR]
    if len(anchors) != 1:
        if set(trained) >= _READERS:
            raise CheckpointError(
                "the checkpoint is of rc/: it marks the answer in a text that a question attends "
                f"to, which cannot be served. {ADVICE}"
            )
        raise CheckpointError(f"the checkpoint holds {_some(trained)}. {ADVICE}")
    scope = anchors[0].removesuffix(_ANCHOR)
    for name in trained:
        for part, problem in _OTHERS.items():
            if part in f"/{name}":
                raise CheckpointError(f"the variable {shown(name)} is {problem}. {ADVICE}")
        if not name.startswith(scope):
            raise CheckpointError(
                f"the variable {shown(name)} is not one of the network {scope}. {ADVICE}"
            )
    return [name.removeprefix(scope) for name in trained]


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return (", ".join(map(shown, listed[:_SHOWN])) or "no variables") + more
