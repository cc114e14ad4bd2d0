"""Compare a translation system with the library that trained it, on known targets."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from sruserve.model.errors import CaseError
from sruserve.model.translation.folder import TranslationModel
from sruserve.model.translation.memory import Memory
from sruserve.model.translation.translator import Translator
from sruserve.model.verification.verify import Difference, largest_difference
from sruserve.model.weights import read_tensors

_NAME = re.compile(r"(0|[1-9][0-9]{0,5})\.(source|target|log_probs|attention|memory)")
_RESULTS = ("log_probs", "attention")


@dataclass(frozen=True, slots=True)
class Pair:
    """A source and a target, and what the library gave for them.

    source, target: (ids), int64, with special ids; the target without its end.
    results: log_probs (target, ids) and attention (target, source), those that there are.
    """

    source: Tensor
    target: Tensor
    results: dict[str, Tensor]


def read_pairs(path: Path) -> list[Pair]:
    """Read the tensors N.source, N.target, N.log_probs and N.attention; raises `CaseError`."""
    try:
        tensors, _ = read_tensors(path)
    except OSError as error:
        raise CaseError(f"cannot read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise CaseError(f"cannot read {path}: {error}") from error
    if unknown := [name for name in tensors if not _NAME.fullmatch(name)]:
        raise CaseError(
            f"{path}: unknown tensors {', '.join(sorted(unknown)[:12])}; the case of a translation "
            "system holds N.source and N.target, and N.log_probs or N.attention, for N from 0 on"
        )
    pairs = []
    for number in range(len({name.split(".")[0] for name in tensors})):
        source, target = (tensors.get(f"{number}.{name}") for name in ("source", "target"))
        results = {k: t for k in _RESULTS if (t := tensors.get(f"{number}.{k}")) is not None}
        if source is None or target is None or not results:
            raise CaseError(f"{path}: pair {number} needs source, target, and a result to compare")
        if any(ids.dim() != 1 or ids.dtype is not torch.int64 for ids in (source, target)):
            raise CaseError(f"{path}: source and target of pair {number} must be lists of int64")
        if not len(target) or any(r.shape[:-1] != target.shape for r in results.values()):
            raise CaseError(f"{path}: pair {number} needs a row of results for each target id")
        pairs.append(Pair(source, target, results))
    if not pairs:
        raise CaseError(f"{path} holds no pairs: save at least one")
    return pairs


def verify_translation(model: TranslationModel, pairs: Sequence[Pair]) -> Iterator[Difference]:
    """Compare each pair alone, then all of them in one batch; raises `CaseError`."""
    translator = model.translator
    for run, groups in (("alone", [[pair] for pair in pairs]), ("together", [list(pairs)])):
        for group in groups:
            for pair, results in zip(group, _forced(translator, group), strict=True):
                for name, theirs in pair.results.items():
                    ours = results[name][:, : theirs.shape[1]]
                    if ours.shape != theirs.shape:
                        raise CaseError(
                            f"{name} has shape {list(theirs.shape)}, not {list(ours.shape)}"
                        )
                    yield Difference(run, name, largest_difference(ours, theirs))


def _forced(translator: Translator, pairs: Sequence[Pair]) -> list[dict[str, Tensor]]:
    """Return the log-probabilities and the attention of each pair's steps."""
    _check(translator, pairs)
    try:
        memory: Memory = translator.encode([pair.source for pair in pairs])
    except ValueError as error:
        raise CaseError(str(error)) from error
    steps = max(len(pair.target) for pair in pairs)
    cache = torch.zeros(len(pairs) * steps, translator.cache_width)
    slots = torch.arange(len(pairs) * steps, dtype=torch.int32).view(len(pairs), steps)
    states = memory.states.clone()
    outputs: list[dict[str, list[Tensor]]] = [{"log_probs": [], "attention": []} for _ in pairs]
    for step in range(steps):
        running = torch.tensor([i for i, pair in enumerate(pairs) if step < len(pair.target)])
        result = translator.step(
            torch.stack([pairs[i].target[step] for i in running.tolist()]),
            torch.full((len(running),), step),
            running,
            memory,
            states[running],
            cache,
            slots[running],
            attention=True,
        )
        states[running] = result.state
        cache[slots[running, step].long()] = result.cache
        assert result.attention is not None
        for row, pair in enumerate(running.tolist()):
            outputs[pair]["log_probs"].append(result.log_probs[row])
            outputs[pair]["attention"].append(result.attention[row])
    return [{name: torch.stack(rows) for name, rows in one.items()} for one in outputs]


def _check(translator: Translator, pairs: Sequence[Pair]) -> None:
    """Raise `CaseError` for a target that the system cannot write."""
    for pair in pairs:
        if not 0 <= int(pair.target.min()) <= int(pair.target.max()) < translator.target_size:
            raise CaseError(f"a target has an id that is not one of {translator.target_size:,}")
        if translator.max_target is not None and len(pair.target) > translator.max_target:
            raise CaseError(
                f"a target has {len(pair.target):,} ids, over {translator.max_target:,}"
            )
