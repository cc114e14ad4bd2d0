"""Viterbi's path through a linear chain is the best of all paths, whole or in chunks."""

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sruserve.model.heads.config import HeadConfig
from sruserve.model.heads.crf import LinearChain, crf_shapes
from sruserve.model.heads.paths import Floats, Paths, Steps
from tests.support import random_config

LABELS = 4
SCORES = st.sampled_from(["any", "tied", "far"])


def chain(
    seed: int, labels: int = LABELS, scores: str = "any", window: int = 60
) -> tuple[LinearChain, dict[str, Tensor]]:
    """A random chain: of any numbers, of small integers that make ties, or of a large spread."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: numbers(shape, generator, scores) for name, shape in crf_shapes(labels).items()
    }
    return LinearChain(tensors, window), tensors


def numbers(shape: tuple[int, ...], generator: torch.Generator, scores: str) -> Tensor:
    if scores == "tied":
        return torch.randint(-1, 2, shape, generator=generator).float()
    return torch.randn(shape, generator=generator) * (1.0 if scores == "any" else 300.0)


def score(tensors: dict[str, Tensor], emissions: Tensor, path: tuple[int, ...]) -> float:
    """The score of a path, in float64, by its definition."""
    w = {name.removeprefix("crf."): tensor.double() for name, tensor in tensors.items()}
    total = w["start_transitions"][path[0]] + w["end_transitions"][path[-1]]
    total = total + sum(emissions[t, label].double() for t, label in enumerate(path))
    for before, after in pairwise(path):
        total = total + w["transitions"][before, after]
    return float(total)


def viterbi(tensors: dict[str, Tensor], emissions: Tensor) -> list[int]:
    """The best path, as `pytorch-crf` finds it."""
    w = {name.removeprefix("crf."): tensor for name, tensor in tensors.items()}
    best, back = w["start_transitions"] + emissions[0], []
    for emission in emissions[1:]:
        best, source = (best[:, None] + w["transitions"] + emission).max(0)
        back.append(source.tolist())
    path = [int((best + w["end_transitions"]).argmax())]
    for source in back[::-1]:
        path.append(source[path[-1]])
    return path[::-1]


@settings(max_examples=60)
@given(length=st.integers(1, 5), seed=st.integers(0, 50), scores=SCORES)
def test_the_path_is_the_best_of_all(length: int, seed: int, scores: str) -> None:
    crf, tensors = chain(seed, scores=scores)
    emissions = numbers((length, LABELS), torch.Generator().manual_seed(seed), scores)
    path = tuple(crf.decode(emissions).tolist())
    every = product(range(LABELS), repeat=length)
    best = max(score(tensors, emissions, candidate) for candidate in every)
    assert score(tensors, emissions, path) == pytest.approx(best, rel=1e-5, abs=1e-5)


@settings(max_examples=40)
@given(length=st.integers(1, 40), seed=st.integers(0, 500), scores=st.sampled_from(["any", "tied"]))
def test_equal_paths_are_ordered_as_in_pytorch_crf(length: int, seed: int, scores: str) -> None:
    crf, tensors = chain(seed, scores=scores)
    emissions = numbers((length, LABELS), torch.Generator().manual_seed(seed + 1), scores)
    assert crf.decode(emissions).tolist() == viterbi(tensors, emissions)


@settings(max_examples=200)
@given(
    length=st.integers(1, 60),
    labels=st.integers(1, 5),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    seed=st.integers(0, 10_000),
    scores=SCORES,
)
def test_the_labels_of_any_chunks_are_those_of_the_whole(
    length: int, labels: int, cuts: list[int], seed: int, scores: str
) -> None:
    crf, _ = chain(seed, labels, scores)
    emissions = numbers((length, labels), torch.Generator().manual_seed(seed + 1), scores)
    values = -emissions
    whole = crf.decode(emissions).numpy()
    state = np.zeros(0, np.float32)
    path: list[int] = []
    shown: list[float] = []
    bounds = [0, *sorted(min(cut, length) for cut in cuts), length]
    for number, (begin, end) in enumerate(pairwise(bounds), 1):
        paths = crf.begin(state)
        assert paths.before == (path[-1] if path else -1)
        for t in range(begin, end, 7):  # as steps of the engine
            part = slice(t, min(t + 7, end))
            paths = crf.extend(paths, emissions[part].numpy(), values[part].numpy())
        settled, scores_of, rest = (
            crf.finish(paths) if number == len(bounds) - 1 else crf.settle(paths)
        )
        path += settled.tolist()
        shown += scores_of.tolist()
        assert len(rest.steps) == end - len(path)
        state = rest.pack()
        assert len(state) in (0, Paths.packed_size(labels, len(rest.steps)))
        assert state.dtype == np.float32
    assert path == whole.tolist()
    assert shown == values[torch.arange(length), torch.from_numpy(whole)].tolist()


def test_steps_that_every_path_shares_are_final_at_once() -> None:
    crf, _ = chain(1)
    emissions = np.zeros((6, LABELS), np.float32)
    emissions[3, 2] = 1000  # every path goes through it
    labels, _, rest = crf.settle(crf.extend(Paths(LABELS), emissions, emissions))
    assert len(labels) >= 4
    assert labels[3] == 2
    assert 1 <= len(rest.steps) <= 2


def test_paths_that_never_meet_leave_all_labels_open() -> None:
    tensors = {name: torch.zeros(shape) for name, shape in crf_shapes(3).items()}
    tensors["crf.transitions"] = torch.full((3, 3), -100.0).fill_diagonal_(0)
    crf, emissions = LinearChain(tensors, 8), np.zeros((20, 3), np.float32)
    labels, _, rest = crf.settle(crf.extend(Paths(3), emissions, emissions))
    assert (len(labels), len(rest.steps)) == (0, 20)
    emissions[:, 1] = 0.5
    assert crf.finish(crf.extend(rest, emissions, emissions))[0].tolist() == [1] * 40


def test_forbidden_labels_stay_forbidden_across_a_state() -> None:
    _, tensors = chain(3)
    tensors["crf.start_transitions"][2:] = -torch.inf
    tensors["crf.transitions"][0, 2] = -torch.inf
    crf, emissions = LinearChain(tensors, 8), torch.randn(9, LABELS)
    emissions[:, 2] += 5
    state = crf.extend(Paths(LABELS), emissions[:1].numpy(), emissions[:1].numpy()).pack()
    assert np.isfinite(state).all()
    rest = crf.extend(crf.begin(state), emissions[1:].numpy(), emissions[1:].numpy())
    assert crf.finish(rest)[0].tolist() == viterbi(tensors, emissions)


@settings(max_examples=200)
@given(
    length=st.integers(1, 60),
    forbidden=st.sets(st.integers(0, LABELS - 1), max_size=LABELS - 1),
    transitions=st.sets(st.tuples(*[st.integers(0, LABELS - 1)] * 2), max_size=4),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    seed=st.integers(0, 10_000),
)
def test_forbidden_labels_and_transitions_leave_chunks_the_labels_of_the_whole(
    length: int,
    forbidden: set[int],
    transitions: set[tuple[int, int]],
    cuts: list[int],
    seed: int,
) -> None:
    _, tensors = chain(seed)
    for label in forbidden:
        tensors["crf.start_transitions"][label] = -torch.inf
        tensors["crf.transitions"][:, label] = -torch.inf
    for before, after in transitions:
        tensors["crf.transitions"][before, after] = -torch.inf
    crf = LinearChain(tensors, 60)
    emissions = numbers((length, LABELS), torch.Generator().manual_seed(seed + 1), "any")
    whole = crf.decode(emissions).tolist()
    assume(score(tensors, emissions, tuple(whole)) > -torch.inf)
    state, path = np.zeros(0, np.float32), list[int]()
    for begin, end in pairwise([0, *sorted(min(cut, length) for cut in cuts), length]):
        part = emissions[begin:end].numpy()
        labels, _, rest = crf.settle(crf.extend(crf.begin(state), part, part))
        path += labels.tolist()
        state = rest.pack()
    assert path + crf.finish(crf.begin(state))[0].tolist() == whole


@pytest.mark.parametrize("label", range(LABELS))
def test_labels_are_decided_whichever_label_is_forbidden(label: int) -> None:
    _, tensors = chain(0)
    tensors["crf.start_transitions"][label] = -torch.inf
    tensors["crf.transitions"][:, label] = -torch.inf
    crf, paths = LinearChain(tensors, 8), Paths(LABELS)
    emissions = 5 * numbers((300, LABELS), torch.Generator().manual_seed(0), "any").numpy()
    for begin in range(0, len(emissions), 10):
        part = emissions[begin : begin + 10]
        _, _, paths = crf.settle(crf.extend(paths, part, part))
        assert len(paths.steps) <= crf.window


def packed(steps: int = 2, **changes: float) -> Floats:
    """Numbers of open steps, some of them changed; the names are in the order of the numbers."""
    source, value = np.ones((steps, LABELS)), np.full((steps, LABELS), 0.5)
    numbers = np.concatenate([[1], np.zeros(LABELS), source.ravel(), value.ravel()])
    places = {"before": 0, "best": 1, "source": 1 + LABELS, "value": -1}
    for name, number in changes.items():
        numbers[places[name]] = number
    return numbers.astype(np.float32)


NO_PATHS = {
    **{f"source {source}": packed(source=source) for source in (4, -1, 0.5, 1e30, np.nan)},
    **{f"before {before}": packed(before=before) for before in (4, -2, 0.5, 1e30, np.nan)},
    **{f"best {best}": packed(best=best) for best in (np.nan, np.inf, -np.inf)},
    **{f"value {value}": packed(value=value) for value in (np.nan, np.inf)},
    **{f"{size} numbers": packed()[:size] for size in (1, 2, LABELS, LABELS + 2, 20)},
    "3 steps": packed(3),
}


@pytest.mark.parametrize("numbers", NO_PATHS.values(), ids=NO_PATHS)
def test_numbers_that_are_no_paths_of_the_chain_are_refused(numbers: Floats) -> None:
    crf, _ = chain(3, window=2)
    with pytest.raises(ValueError, match=r"labels|finite"):
        crf.begin(numbers)


@pytest.mark.parametrize("numbers", [packed(0), packed(1), packed(2), packed(before=-1)])
def test_numbers_of_paths_are_accepted_up_to_the_window(numbers: Floats) -> None:
    crf, _ = chain(3, window=2)
    assert crf.begin(numbers).pack().tolist() == numbers.tolist()


@pytest.mark.parametrize(("score", "finite"), [(-torch.inf, True), (torch.inf, False)])
def test_only_a_score_that_forbids_a_label_may_be_infinite(score: float, finite: bool) -> None:
    crf, _ = chain(3)
    emissions = torch.zeros(3, LABELS)
    emissions[1, 2] = score
    assert crf.extend(Paths(LABELS), emissions.numpy(), emissions.numpy()).is_finite is finite


def test_a_very_long_stream_keeps_its_precision() -> None:
    crf, tensors = chain(4)
    emissions = torch.randn(1500, LABELS, generator=torch.Generator().manual_seed(4)) + 10_000
    exact = {name: tensor.double() for name, tensor in tensors.items()}
    different = np.array(viterbi(exact, emissions.double())) != crf.decode(emissions).numpy()
    assert different.sum() <= 5
    inexact = np.array(viterbi(tensors, emissions)) != crf.decode(emissions).numpy()
    assert inexact.sum() > 100


def test_a_crf_streams_with_a_window_and_is_for_tags() -> None:
    config = random_config("tag", labels=("a", "b"), head=HeadConfig(crf=True))
    assert config.not_streamable_because is None
    assert config.head.crf_window == 128
    with pytest.raises(ValueError, match="crf is for task tag only"):
        random_config("classify", labels=("a", "b"), head=HeadConfig(crf=True))
    with pytest.raises(ValueError, match="may have 256 labels; this one has 300"):
        random_config("tag", labels=tuple(map(str, range(300))), head=HeadConfig(crf=True))
    with pytest.raises(ValueError, match="crf_window is for a head with crf"):
        random_config("tag", labels=("a", "b"), head=HeadConfig(crf_window=16))


class CountedRows(np.ndarray[Any, np.dtype[np.uint8]]):
    """An array that counts how often it is indexed."""

    rows = 0

    def __getitem__(self, key: Any) -> Any:
        CountedRows.rows += 1
        return super().__getitem__(key)


def test_paths_that_do_not_meet_within_the_window_are_not_followed_further() -> None:
    crf, _ = chain(0, labels=2, window=8)
    steps, CountedRows.rows = 1000, 0
    sources = np.tile(np.array([0, 1], np.uint8), (steps, 1)).view(CountedRows)
    values = np.zeros((steps, 2), np.float32)
    apart = Paths(2, np.zeros(2, np.float32), (Steps(sources, values),))
    labels, _, rest = crf.settle(apart)
    assert (len(labels), len(rest.steps)) == (0, steps)
    assert CountedRows.rows <= 3 * 8  # of the sources, and of rows of them
