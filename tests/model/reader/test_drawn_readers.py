"""Readers of drawn options have the scores of the paper's formulas."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sruserve.model.reader.config import TagTable
from sruserve.model.reader.network import Reader
from tests.model.reader.formulas import scores
from tests.model.reader.test_reader import drawn, run
from tests.readers import reader_config
from tests.support import random_tensors

TABLES = {
    "pos": TagTable(labels=("NN", "VB", "."), size=3),
    "ner": TagTable(labels=("PER", "LOC"), size=2),
}
FEATURES = (
    "in_question", "in_question_uncased", "in_question_lemma", "tf", "pos=NN", "pos=VB", "ner=LOC",
)  # fmt: skip


@st.composite
def readers(draw: st.DrawFn) -> dict[str, Any]:
    """Options of a reader, in any combination that a config may have."""
    family = draw(st.sampled_from(["sru", "lstm", "gru", "rnn", "qrnn"]))
    tables = draw(st.sets(st.sampled_from(sorted(TABLES))))
    features = draw(st.lists(st.sampled_from(FEATURES), unique=True))
    features = [name for name in features if name.partition("=")[0] not in tables]
    parts = ["words", *sorted(tables), *(["features"] if features else [])]
    inputs = draw(st.permutations(parts + draw(st.sampled_from([[], ["aligned"]]))))
    return {
        "family": family,
        "layers": draw(st.integers(1, 3)),
        "question_layers": draw(st.integers(1, 3)),
        "concat_layers": family != "qrnn" and draw(st.booleans()),
        "question_merge": draw(st.sampled_from(["self_attn", "avg"])),
        "features": tuple(features),
        "inputs": tuple(inputs),
        **{name: TABLES[name] for name in tables},
    }


@settings(max_examples=25)
@given(
    options=readers(),
    words=st.integers(1, 20),
    question_words=st.integers(1, 9),
    seed=st.integers(0, 9),
)
def test_a_reader_of_any_options_has_the_scores_of_the_formulas(
    options: dict[str, Any], words: int, question_words: int, seed: int
) -> None:
    config = reader_config(**options)
    tensors = random_tensors(config, seed)
    reader = Reader(config, tensors, torch.float32)
    rows, pair = drawn(reader, words, question_words, seed)
    expected = scores(config, tensors, pair)
    (alone,) = run(reader, [rows], [(words, question_words)])
    torch.testing.assert_close(alone, expected, rtol=1e-5, atol=2e-5)
    stored = reader.documents.store(rows[:words])
    for _ in range(2):  # computed and kept, then taken from there
        (again,) = run(reader, [rows], [(words, question_words)])
        assert torch.equal(again, alone)
    assert stored.encoded is not None
