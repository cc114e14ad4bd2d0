"""A reader's scores: the paper's formulas, in any company."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.model.reader.config import COLUMNS, TagTable
from sruserve.model.reader.network import Reader
from tests.model.reader.formulas import Pair, scores
from tests.readers import WORDS, reader_config
from tests.support import random_tensors

POS = TagTable(labels=("NN", "VB", "."), size=3)
FORMS: dict[str, dict[str, Any]] = {
    "sru": {},
    "sru-last-layer-avg": {"concat_layers": False, "question_merge": "avg"},
    "sru-no-alignment": {"inputs": ("words", "features"), "question_layers": 1},
    "lstm": {"family": "lstm", "layers": 3},
    "lstm-tags": {
        "family": "lstm", "inputs": ("words", "features", "aligned", "pos"), "pos": POS,
        "features": ("in_question_lemma", "ner=PER", "tf", "ner=LOC"),
    },
    "gru-words-alone": {"family": "gru", "inputs": ("words", "aligned"), "features": ()},
    "qrnn": {"family": "qrnn", "concat_layers": False},
}  # fmt: skip
LENGTHS = [(5, 3), (1, 1), (40, 9), (2, 17), (130, 4)]


def built(form: str) -> tuple[Reader, dict[str, Tensor]]:
    config = reader_config(**FORMS[form])
    tensors = random_tensors(config)
    return Reader(config, tensors, torch.float32), tensors


def drawn(reader: Reader, words: int, question_words: int, seed: int) -> tuple[Tensor, Pair]:
    """The rows of a pair, and what they say."""
    config, generator = reader.config.reader, torch.Generator().manual_seed(seed)
    assert config is not None
    rows = torch.zeros(words + question_words, len(COLUMNS))
    rows[:, 0] = torch.randint(len(WORDS), (words + question_words,), generator=generator)
    rows[:words, 1:5] = torch.rand(words, 4, generator=generator)
    for tag in ("pos", "ner"):
        known = len(config.labels(tag)) + (tag not in config.tables)  # an unknown one, too
        if config.labels(tag):
            numbers = torch.randint(known, (words,), generator=generator)
            rows[:words, COLUMNS.index(tag)] = numbers.float()
    own = rows[:words]
    features = torch.zeros(words, len(config.features))
    for column, name in enumerate(config.features):
        kind, _, label = name.partition("=")
        values = own[:, COLUMNS.index(kind)]
        if label:
            values = (values == config.labels(kind).index(label)).float()
        features[:, column] = values
    tags = {tag: own[:, COLUMNS.index(tag)].long() for tag in config.tables}
    return rows, Pair(own[:, 0].long(), rows[words:, 0].long(), features, tags)


def run(
    reader: Reader, pairs: Sequence[Tensor], lengths: Sequence[tuple[int, int]]
) -> list[Tensor]:
    """The scores of each pair's document."""
    flat = [length for pair in lengths for length in pair]
    offsets = torch.tensor([0, *accumulate(flat)])
    nowhere = torch.full((len(flat),), -1)
    batch = RaggedBatch(offsets, reader.layout.allocate(1), nowhere, nowhere)
    outputs = reader.hidden(torch.cat(list(pairs)), batch)
    parts = torch.split(outputs, flat)
    assert not torch.cat(parts[1::2]).any(), "a question's words have no scores"
    return list(parts[::2])


@pytest.mark.parametrize("form", FORMS)
def test_scores_are_those_of_the_formulas(form: str) -> None:
    reader, tensors = built(form)
    for seed, lengths in enumerate(LENGTHS):
        rows, pair = drawn(reader, *lengths, seed)
        (ours,) = run(reader, [rows], [lengths])
        expected = scores(reader.config, tensors, pair)
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=2e-5)


@settings(max_examples=8)
@given(order=st.permutations(range(len(LENGTHS))), data=st.data())
def test_a_pair_has_the_same_bits_in_any_company(order: list[int], data: st.DataObject) -> None:
    reader, _ = built(data.draw(st.sampled_from(sorted(FORMS))))
    pairs = [drawn(reader, *lengths, seed)[0] for seed, lengths in enumerate(LENGTHS)]
    alone = [run(reader, [pair], [size])[0] for pair, size in zip(pairs, LENGTHS, strict=True)]
    chosen = [*order, order[0], order[0]]
    threads = torch.get_num_threads()
    torch.set_num_threads(data.draw(st.integers(1, 2)))
    try:
        together = run(reader, [pairs[i] for i in chosen], [LENGTHS[i] for i in chosen])
    finally:
        torch.set_num_threads(threads)
    for i, result in zip(chosen, together, strict=True):
        assert torch.equal(result, alone[i])


@pytest.mark.parametrize(("form", "same_features"), [("sru", False), ("sru-no-alignment", True)])
def test_consecutive_pairs_of_one_document_share_what_no_question_changes(
    form: str, same_features: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, _ = built(form)
    (words, question_words), count = (40, 9), 5
    pairs = [drawn(reader, words, question_words, 1)[0].clone() for _ in range(count)]
    for i, rows in enumerate(pairs):
        rows[words:, 0] = i  # another question
        if not same_features:
            rows[i, 1] += 1
    alone = [run(reader, [rows], [(words, question_words)])[0] for rows in pairs]
    embedded: list[int] = []
    look_up = reader._embedding.__call__

    def look_up_and_count(ids: Tensor) -> Tensor:
        embedded.append(len(ids))
        return look_up(ids)

    for part in (reader, reader.documents):
        monkeypatch.setattr(part, "_embedding", look_up_and_count)
    together = run(reader, pairs, [(words, question_words)] * count)
    assert sum(embedded) == words + count * question_words
    for ours, expected in zip(together, alone, strict=True):
        assert torch.equal(ours, expected)


def test_a_stored_document_is_that_of_the_same_words_features_and_tags_alone() -> None:
    config = reader_config(inputs=("words", "features"), features=("tf", "ner=PER"))
    reader = Reader(config, random_tensors(config), torch.float32)
    (words, question_words), count = (9, 4), 4
    pairs = [drawn(reader, words, question_words, 1)[0].clone() for _ in range(count)]
    for rows, column in zip(pairs[1:], ("tf", "ner", "in_question"), strict=True):
        number = COLUMNS.index(column)
        rows[0, number] = 1 - rows[0, number]
    alone = [run(reader, [rows], [(words, question_words)])[0] for rows in pairs]
    stored = reader.documents.store(pairs[0][:words])
    for _ in range(2):  # the first step computes it
        together = run(reader, pairs, [(words, question_words)] * count)
        assert stored.encoded is not None
        for ours, expected in zip(together, alone, strict=True):
            assert torch.equal(ours, expected)
    assert reader.documents.store(pairs[3][:words]) is stored
    assert not torch.equal(alone[0], alone[1])
    assert not torch.equal(alone[0], alone[2])
