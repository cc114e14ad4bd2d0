"""A case of texts: what the pipeline that trained a model answers for them, tokenizer included."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from sruserve.model.config import ModelConfig, explain
from sruserve.model.errors import CaseError
from sruserve.model.files import read_regular
from sruserve.model.folder import Model

_LARGEST_FILE = 64 << 20  # bytes
_MAX_ENTRIES = 100_000
_SHOWN = 60  # characters of a text in a message

Ids = tuple[NonNegativeInt, ...]


class Entry(BaseModel):
    """An input, and what the training pipeline answers for it; at least one answer.

    text: read by the model's own tokenizer. ids: those of the text, or the input of a model
        without a vocabulary. pair, pair_ids: the second input, for task pair.
    label: the answered label. labels: that of each id, for task tag.
    probabilities: by label, or in the order of the labels.
    values: of a regressor, in the order of its outputs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str | None = None
    pair: str | None = None
    ids: Ids | None = None
    pair_ids: Ids | None = None
    label: str | None = None
    labels: tuple[str, ...] | None = None
    probabilities: dict[str, float] | tuple[float, ...] | None = None
    values: tuple[float, ...] | None = None

    @model_validator(mode="after")
    def _has_input_and_answer(self) -> Self:
        if self.text is None and self.ids is None:
            raise ValueError("needs a text, or ids")
        if not self.has_answer and (self.text is None or self.ids is None):
            raise ValueError("has nothing to compare: ids of a text, label, probabilities, values")
        if self.probabilities == {}:
            raise ValueError("has the probabilities of no label")
        return self

    @property
    def has_answer(self) -> bool:
        """Whether there is an answer of the network, and not only the ids of a text."""
        answers = (self.label, self.labels, self.probabilities, self.values)
        return any(answer is not None for answer in answers)

    @property
    def shown(self) -> str:
        """The input, short enough for a message."""
        text = str(list(self.ids or ())) if self.text is None else repr(self.text)
        return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


_Entries = TypeAdapter(
    Annotated[tuple[Entry, ...], Field(min_length=1, max_length=_MAX_ENTRIES, fail_fast=True)]
)


class TextCase:
    """The entries of a JSON file. Raises `CaseError`."""

    def __init__(self, path: Path) -> None:
        try:
            self.entries: Sequence[Entry] = _Entries.validate_json(
                read_regular(path, _LARGEST_FILE)
            )
        except OSError as error:
            raise CaseError(f"cannot read {path}: {error.strerror or error}") from error
        except ValidationError as error:
            raise CaseError(f"{path} is not a case of texts: {explain(error)}") from error

    def check_fit(self, model: Model) -> None:
        """Raise `CaseError` unless the model can read the inputs and give such answers."""
        for number, entry in enumerate(self.entries):
            if problem := _problem(entry, model):
                raise CaseError(f"entry {number} ({entry.shown}): {problem}")


def _problem(entry: Entry, model: Model) -> str | None:
    """Return why an entry does not fit the model; None if it does."""
    config, name = model.config, model.name
    if config.vocab_size is None:
        return f"{name} reads features: use a case of tensors"
    if model.codec is None and (entry.text is not None or entry.pair is not None):
        return f"{name} has no vocabulary, so it reads ids alone"
    for ids in (entry.ids or (), entry.pair_ids or ()):
        if ids and max(ids) >= config.vocab_size:
            return f"it holds the id {max(ids)}; those of {name} are 0 to {config.vocab_size - 1}"
    has_pair = entry.pair is not None or entry.pair_ids is not None
    if entry.has_answer and has_pair is not (config.task == "pair"):
        return f"{name} " + ("reads one input" if has_pair else "compares two inputs: add a pair")
    inputs = [(entry.text, entry.ids)] + ([(entry.pair, entry.pair_ids)] if has_pair else [])
    if any(text is None and not ids for text, ids in inputs):
        return "it has no ids"
    return _unfit_answer(entry, config)


def _unfit_answer(entry: Entry, config: ModelConfig) -> str | None:
    fields = {
        "label": ("classify", "pair"),
        "labels": ("tag",),
        "probabilities": ("classify", "pair"),
        "values": ("regress",),
    }
    for field, tasks in fields.items():
        if getattr(entry, field) is not None and config.task not in tasks:
            return f"{field} is for task {' and '.join(tasks)}, not for task {config.task}"
    named = [] if entry.label is None else [entry.label]
    named += entry.labels or ()
    if isinstance(entry.probabilities, dict):
        named += entry.probabilities
    if unknown := [label for label in named if label not in config.labels]:
        labels = ", ".join(config.labels[:8])
        return f"there is no label {unknown[0][:_SHOWN]!r}; the labels are {labels}"
    numbers = entry.values or entry.probabilities
    if isinstance(numbers, tuple) and len(numbers) != config.outputs:
        return f"it has {len(numbers)} numbers; the model has {config.outputs} outputs"
    return None
