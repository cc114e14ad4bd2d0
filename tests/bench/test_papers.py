"""The papers' systems have the papers' sizes, and their baselines in torch compute the same."""

import pytest
import torch

from bench.papers import characters, classification, peers
from bench.papers.lrn import DOCUMENTS, FAMILIES
from bench.papers.systems import System, ids, run

_CPU = torch.device("cpu")


def test_the_classifiers_have_the_weights_of_the_sru_papers_table_1() -> None:
    thousands = {
        name: system.parameters() // 1000 for name, system in classification.SYSTEMS.items()
    }
    assert thousands == {
        "CNN": 360,
        "LSTM": 352,
        "QRNN": 165,
        "QRNN + highway": 203,
        "SRU, 2 layers": 204,
        "SRU, 4 layers": 303,
        "SRU, 8 layers": 502,
    }


def test_the_character_models_have_37_and_47_million_weights_and_those_of_srupp_108() -> None:
    millions = {name: s.parameters() / 1e6 for name, s in characters.SYSTEMS.items()}
    for name, count in millions.items():
        if name.startswith("SRU++"):
            expected = 107.57 - 205 * 3072 / 1e6  # the release counts the embeddings, too
        else:
            expected = 47 if "projection" in name else 37
        assert count == pytest.approx(expected, rel=0.04), name


def test_the_document_encoders_differ_as_those_of_the_lrn_paper() -> None:
    sizes = {f: System(f, "encode", DOCUMENTS.sizes).parameters() for f in FAMILIES}
    reported = {"lstm": 227, "gru": 176, "atr": 74, "sru": 194, "lrn": 151}  # thousands
    rest = {family: reported[family] - sizes[family] / 1000 for family in FAMILIES}
    # Embeddings of characters and the attention are the same for all.
    assert max(rest.values()) - min(rest.values()) < 1, rest


@pytest.mark.parametrize("carries", [False, True], ids=["from zeros", "continued"])
def test_torchs_lstm_computes_what_ours_does(carries: bool) -> None:
    system = System(
        "lstm", "generate", {"input_size": 6, "hidden_size": 8, "num_layers": 2}, vocabulary=9
    )
    text = ids(3, 5, 9)
    ours = run(system.network(_CPU), text, last=True, carries=carries)
    theirs = peers.lstm(system.tensors(), _CPU, text, carries)
    first = ours().clone()
    torch.testing.assert_close(first, theirs(), rtol=0, atol=1e-6)
    torch.testing.assert_close(ours(), theirs(), rtol=0, atol=1e-6)
    assert torch.equal(ours(), first) is not carries


def test_torchs_cnn_computes_what_ours_does() -> None:
    stack = {"input_size": 6, "hidden_size": 4, "filter_widths": (2, 3)}
    system = System("cnn", "classify", stack, vocabulary=9, labels=3)
    sentences = ids(4, 7, 9)
    ours = run(system.network(_CPU), sentences, last=True, carries=False)
    theirs = peers.cnn(system.tensors(), _CPU, sentences)
    torch.testing.assert_close(ours(), theirs(), rtol=0, atol=1e-6)
