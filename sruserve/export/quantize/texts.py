"""Held-out data, on which a model is compared before and after: a text, or texts with labels."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from sruserve.export.errors import ExportError
from sruserve.model.config import explain
from sruserve.model.errors import TextError
from sruserve.model.files import read_regular
from sruserve.model.folder import Model


class LabelledText(BaseModel):
    """A line of a file of texts; `label` is the right one, if it is known."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    text: str
    label: str | None = None


@dataclass(frozen=True)
class HeldOut:
    """Files of held-out data.

    text: for a language model. texts: for a classifier, a JSON object on each line.
    """

    text: Path | None = None
    texts: Path | None = None

    def check_fit(self, model: Model) -> None:
        """Raise `ExportError` unless the files can be read and are for models like this one."""
        for option, file, task in (
            ("text", self.text, "generate"),
            ("texts", self.texts, "classify"),
        ):
            if file is None:
                continue
            if model.config.task != task:
                raise ExportError(
                    f"--{option} is for models with task {task}; this one has {model.config.task}"
                )
            if model.codec is None:
                raise ExportError(
                    f"--{option} needs a vocabulary, which this model does not have: leave it out"
                )
        unknown = {line.label for line in self.labelled} - {None, *model.labels}
        if unknown:
            raise ExportError(
                f"{self.texts} has labels that the model does not know, "
                f"{', '.join(sorted(map(str, unknown))[:5])}; its own are "
                f"{', '.join(model.labels[:20])}"
            )
        for line in self.labelled:
            encode(model, line.text)
        if self.content is not None:
            assert model.codec is not None
            ids = encode(model, self.content)
            if not model.codec.characters[ids[1:].numpy()].sum():
                raise ExportError("the held-out text is too short to be scored: give a longer one")

    @property
    def labelled_count(self) -> int:
        """Number of texts whose right label is known."""
        return sum(line.label is not None for line in self.labelled)

    @cached_property
    def content(self) -> str | None:
        """The text of the file `text`."""
        return None if self.text is None else _read(self.text)

    @cached_property
    def labelled(self) -> list[LabelledText]:
        """The lines of the file `texts`."""
        if self.texts is None:
            return []
        lines = []
        for number, line in enumerate(_read(self.texts).splitlines(), 1):
            if not line.strip():
                continue
            try:
                lines.append(LabelledText.model_validate_json(line))
            except ValidationError as error:
                raise ExportError(f"{self.texts}, line {number}: {explain(error)}") from error
        if not lines:
            raise ExportError(f"{self.texts} has no texts: write one JSON object into each line")
        return lines


def encode(model: Model, text: str) -> Tensor:
    """The ids of a text; raises `ExportError` if the model's vocabulary refuses it."""
    assert model.codec is not None
    try:
        ids = model.codec.encode(text)[0]
    except TextError as error:
        raise ExportError(f"a held-out text is refused: {error}") from error
    if not len(ids):
        raise ExportError("a held-out text has no ids: leave it out")
    return torch.from_numpy(ids)


def _read(path: Path) -> str:
    try:
        return read_regular(path).decode()
    except UnicodeDecodeError as error:
        raise ExportError(f"{path} is not UTF-8: {error.reason}") from error
    except OSError as error:
        raise ExportError(f"cannot read {path}: {error.strerror}") from error
