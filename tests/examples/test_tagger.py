"""What trains the tagger: its sentences, whose test part training never sees, and its CRF."""

from itertools import islice, pairwise, product
from random import Random

import pytest
import torch

from examples.crf import CRF
from examples.entity_sentences import LABELS, Sentences
from examples.entity_values import Values
from examples.entity_words import read_templates

COUNT = 300
NAMES = ["O", "B-x", "I-x", "B-y", "I-y"]


@pytest.mark.parametrize("held_out", [False, True])
def test_spans_are_in_order_inside_the_text_and_without_space_around(held_out: bool) -> None:
    seen = set[str]()
    for text, spans in islice(Sentences(Random(1), held_out=held_out), COUNT):
        places = [place for begin, end, _ in spans for place in (begin, end)]
        assert places == sorted(places)
        for begin, end, label in spans:
            assert text[begin:end] == text[begin:end].strip() != ""
            seen.add(label)
    assert seen == set(LABELS)


def test_a_seed_gives_the_same_sentences() -> None:
    first, second = (list(islice(Sentences(Random(7)), COUNT)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("kind", ["_places", "_given", "_family", "_domains"])
def test_the_test_has_names_of_its_own(kind: str) -> None:
    train, test = (
        set(getattr(Values(Random(1), held_out=held_out), kind)) for held_out in (False, True)
    )
    assert train.isdisjoint(test)
    assert len(test) >= len(train | test) // 8


def test_the_test_has_templates_of_its_own() -> None:
    train, test = (Sentences(Random(1), held_out=held_out)._templates for held_out in (False, True))
    assert set(train).isdisjoint(test)
    assert {*train, *test} == set(read_templates())


@torch.no_grad()
def every_path(crf: CRF, scores: torch.Tensor) -> dict[tuple[int, ...], float]:
    """The score of each sequence of labels for `scores` (steps, labels)."""
    return {
        path: float(
            crf.start_transitions[path[0]]
            + sum(scores[step, label] for step, label in enumerate(path))
            + sum(crf.transitions[pair] for pair in pairwise(path))
            + crf.end_transitions[path[-1]]
        )
        for path in product(range(len(NAMES)), repeat=len(scores))
    }


def test_the_loss_and_the_best_labels_are_those_of_all_sequences_of_labels() -> None:
    generator = torch.Generator().manual_seed(1)
    crf = CRF(NAMES)
    with torch.no_grad():
        for tensor in crf.parameters():
            tensor.add_(torch.randn(tensor.shape, generator=generator))
    scores = torch.randn(4, 2, len(NAMES), generator=generator)
    labels = torch.tensor([[0, 1], [1, 2], [2, 3], [0, 0]])
    lengths = torch.tensor([4, 3])
    losses = list[float]()
    for index, length in enumerate(lengths.tolist()):
        paths = every_path(crf, scores[:length, index])
        total = torch.tensor(list(paths.values()), dtype=torch.float64).logsumexp(0)
        losses.append(float(total) - paths[tuple(labels[:length, index].tolist())])
        best = crf.decode(scores[:length, index : index + 1])[0]
        assert tuple(best) == max(paths, key=paths.__getitem__)
    assert crf.loss(scores, labels, lengths).item() == pytest.approx(sum(losses) / 2, rel=1e-4)


def test_a_span_continues_only_after_its_own_beginning() -> None:
    crf, scores = CRF(NAMES), torch.zeros(3, 1, len(NAMES))
    scores[:, 0, NAMES.index("I-y")] = 9
    assert [NAMES[label] for label in crf.decode(scores)[0]] == ["B-y", "I-y", "I-y"]
