"""Run a model on texts, and compare ids and answers with those of the training pipeline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sruserve.model.errors import TextError
from sruserve.model.folder import Model
from sruserve.model.verification.answers import outputs, result, runs
from sruserve.model.verification.text_cases import Entry, TextCase
from sruserve.model.verification.verify import Difference, largest_difference

_SHOWN_IDS = 8


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A text with other ids, another label, or none at all.

    tensor: "ids", "label" or "text". text: the input, shortened.
    """

    run: str
    tensor: str
    text: str
    ours: str
    theirs: str


def verify_texts(
    model: Model, case: TextCase, splits: int = 4, seed: int = 0
) -> Iterator[Difference | Mismatch]:
    """Compare every entry, whole and in random splits if the model streams.

    Yields its mismatches, and the largest differences of its numbers. Raises `CaseError` if the
    case does not fit the model.
    """
    case.check_fit(model)
    for entry in case.entries:
        try:
            sides = [_ids(model, entry.text, entry.ids)]
            if entry.pair is not None or entry.pair_ids is not None:
                sides.append(_ids(model, entry.pair, entry.pair_ids))
        except TextError as error:
            yield Mismatch("whole", "text", entry.shown, f"refused: {error}", "an answer")
            continue
        yield from _compare_ids(entry, sides)
        if entry.has_answer:
            yield from _compare_answers(model, entry, sides, splits, seed)


def _ids(model: Model, text: str | None, ids: Sequence[int] | None) -> Tensor:
    """Return the ids of a whole text as the server reads it; without one, those of the case.

    Raises `TextError` for a text that the server refuses.
    """
    if text is None:
        return torch.tensor(ids, dtype=torch.int64)
    assert model.codec is not None
    own = model.codec.encode(text)[0]
    if not len(own):
        raise TextError("it has no ids")
    frame = model.codec.frame
    return torch.from_numpy(own if frame is None else frame.around(own))


def _compare_ids(entry: Entry, sides: Sequence[Tensor]) -> Iterator[Mismatch | Difference]:
    for ids, text, theirs in zip(
        sides, (entry.text, entry.pair), (entry.ids, entry.pair_ids), strict=False
    ):
        if text is None or theirs is None:
            continue
        ours = tuple(ids.tolist())
        if ours == theirs:
            yield Difference("whole", "ids", 0.0)
            continue
        first = next(
            (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
            min(len(ours), len(theirs)),
        )
        yield Mismatch("whole", "ids", entry.shown, _around(ours, first), _around(theirs, first))


def _around(ids: Sequence[int], first: int) -> str:
    """Show the ids from the first difference on."""
    shown = ", ".join(map(str, ids[first : first + _SHOWN_IDS]))
    more = ", …" if len(ids) > first + _SHOWN_IDS else ""
    return f"[{'…, ' if first else ''}{shown}{more}] ({len(ids)} ids)"


def _compare_answers(
    model: Model, entry: Entry, sides: Sequence[Tensor], splits: int, seed: int
) -> Iterator[Mismatch | Difference]:
    network = model.network
    for run, ends in runs(model, list(map(len, sides)), splits, seed):
        states = network.layout.allocate(len(sides), network.device)
        every_step = model.config.task in ("pair", "tag")
        hidden = outputs(network, sides, states, ends, last=not every_step)
        rows = torch.cat([h for h in hidden if h is not None])
        if model.config.task == "pair":
            scores = network.compare(rows, list(map(len, sides)))
            numbers = network.activation(scores).float().cpu()
        else:
            numbers = result(network, rows, "probabilities")
        yield from _compare_numbers(model, entry, run, numbers)
        yield from _compare_labels(entry, run, _labels(model, rows, numbers))


def _compare_numbers(model: Model, entry: Entry, run: str, numbers: Tensor) -> Iterator[Difference]:
    """Compare what a reply would show, (1, outputs), or (steps, outputs) for task tag."""
    labels = model.labels
    if isinstance(entry.probabilities, dict):
        own = [labels.index(label) for label in entry.probabilities]
        theirs = torch.tensor([list(entry.probabilities.values())])
        yield Difference(run, "probabilities", largest_difference(numbers[:, own], theirs))
    elif entry.probabilities is not None:
        theirs = torch.tensor([entry.probabilities])
        yield Difference(run, "probabilities", largest_difference(numbers, theirs))
    if entry.values is not None:
        theirs = torch.tensor([entry.values])
        yield Difference(run, "values", largest_difference(numbers, theirs))


def _labels(model: Model, hidden: Tensor, numbers: Tensor) -> tuple[str, ...]:
    """Return the labels that a reply would show: for each row of `numbers`, (rows, outputs)."""
    if not model.labels:
        return ()
    crf = model.network.crf
    if crf is not None:
        best = crf.decode(model.network.logits(hidden)).tolist()
    else:
        best = [row.index(max(row)) for row in numbers.tolist()]
    return tuple(model.labels[i] for i in best)


def _compare_labels(
    entry: Entry, run: str, ours: tuple[str, ...]
) -> Iterator[Mismatch | Difference]:
    expected = entry.labels if entry.label is None else (entry.label,)
    if expected is None:
        return
    if ours == expected:
        yield Difference(run, "label", 0.0)
    else:
        yield Mismatch(run, "label", entry.shown, _few(ours), _few(expected))


def _few(labels: Sequence[str]) -> str:
    """Show labels, of up to `_SHOWN_IDS` steps."""
    shown = ", ".join(labels[:_SHOWN_IDS])
    return shown + (f", … ({len(labels)} labels)" if len(labels) > _SHOWN_IDS else "")
