"""Checkpoints of every format: recognition, tasks, labels, vocabularies."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor

from sruserve.model.folder import load_model
from sruserve.model.importers.build import recognise
from sruserve.model.importers.formats import FORMATS
from tests.model.importers.running import imported, refused, run_import
from tests.model.importers.scripts import CLASSIFIER, ENWIK8, WORDS, script_tensors

STACK = {
    "rnn_lst.0.weight": torch.ones(12, 36),
    "rnn_lst.0.bias": torch.ones(24),
    "rnn_lst.0.scale_x": torch.ones(1),
}
OTHER = {"dense.weight": torch.zeros(4, 4), "dense.bias": torch.zeros(4)}


def test_names_of_no_known_origin_are_refused_unless_the_origin_is_said(tmp_path: Path) -> None:
    message = refused(tmp_path, OTHER, "encode", options={})
    assert "dense.weight [4, 4], dense.bias [4]" in message
    assert "fit no known format" in message
    assert all(name in message for name in FORMATS)
    message = refused(tmp_path, STACK, "encode", "--format", "sru", options={})
    assert "weight_c is missing" in message


@pytest.mark.parametrize("name", ["sru", "srupp", "drqa", "lrn", "qrnn", "awd-qrnn"])
def test_a_format_that_does_not_fit_is_refused_with_the_tensors_of_the_file(
    tmp_path: Path, name: str
) -> None:
    message = refused(tmp_path, OTHER, "encode", "--format", name, options={})
    assert "tensors: this is not a checkpoint of" in message
    assert "but holds dense.weight [4, 4], dense.bias [4]; choose another --format" in message


def test_options_that_are_no_file_are_refused(tmp_path: Path) -> None:
    message = refused(tmp_path, STACK, "encode", "--options", '{"layers": 1}')
    assert 'cannot read {"layers": 1}: No such file or directory; name a JSON file' in message


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_says_what_is_missing(tmp_path: Path, name: str) -> None:
    options = {"encoder": "doc_rnn", "window": 1}
    message = refused(tmp_path, OTHER, "encode", "--format", name, options=options)
    assert len(message) < 400


@pytest.mark.parametrize("place", ["embedding_layer.weight", "rnn.rnn_lst.1.weight_c"])
def test_weights_of_a_run_that_diverged_are_refused(tmp_path: Path, place: str) -> None:
    tensors = script_tensors("generate", ENWIK8)
    tensors[place] = tensors[place].clone()
    tensors[place].view(-1)[3] = torch.nan
    assert "some numbers are NaN" in refused(tmp_path, tensors, "generate", options={})


def test_a_format_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    result = run_import(tmp_path, OTHER, "--task", "encode", "--format", "tensorflow")
    assert result.exit_code == 2
    assert "'tensorflow' is unknown" in " ".join(result.output.replace("\u2502", " ").split())


@pytest.mark.parametrize(
    ("names", "origin"),
    [
        (("rnn_lst.0.weight", "rnn_lst.0.bias"), "sru"),
        (("encoder.rnn_lst.0.weight_c", "out.weight"), "sru"),
        (("rnn_lst.0.transform_module.weight", "rnn_lst.0.weight_c"), "sru"),
        (("rnn.rnn_lst.0.transform_module.1.weight", "rnn.rnn_lst.0.weight_c"), "sru"),
        (("rnn_lst.0.custom_m.weight", "rnn_lst.0.weight_c"), "sru"),
        (("weight", "weight_c", "bias", "scale_x"), "sru"),
        (("rnn_lst.0.transform_module.linear1.weight", "rnn_lst.0.weight_c"), "srupp"),
        (("doc_rnn.rnns.0.weight", "question_rnn.rnns.0.weight"), "drqa"),
        (("cell_0._W", "cell_0._W_b"), "lrn"),
        (("encoder.weight", "rnns.0.module.cell_0._W", "prior.weight"), "lrn"),
        (("layers.0.linear.weight", "layers.0.linear.bias"), "qrnn"),
        (("encoder.weight", "rnns.0.linear.module.weight_raw", "decoder.bias"), "awd-qrnn"),
        (("encoder.weight", "rnns.0.module.weight_hh_l0_raw", "decoder.bias"), "awd-qrnn"),
        (("encoder.weight", "rnns.0.weight_hh_l0", "rnns.1.weight_hh_l0"), "awd-qrnn"),
        (("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"), "torch"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_auto_knows_an_origin_by_its_names(names: tuple[str, ...], origin: str) -> None:
    assert recognise(dict.fromkeys(names, torch.zeros(1))) == origin


def test_a_task_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    tensors = script_tensors("generate", ENWIK8)
    assert "--task generate" in refused(tmp_path, tensors, "encode", options={})
    bare = {k.removeprefix("rnn."): v for k, v in tensors.items() if k.startswith("rnn.")}
    assert "--task encode" in refused(tmp_path, bare, "classify", options={})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"labels": ["a", "b"]}, "2 different labels for 3 classes"),
        ({"labels": "a"}, "list of strings"),
        ({"vocab": ["a", "b"]}, "2 entries, but the embedding has 4"),
        ({"vocab": ["a", "b", "c", "c"]}, "distinct words"),
    ],
)
def test_labels_and_vocabularies_that_do_not_fit_are_refused(
    tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    tensors = script_tensors("classify", CLASSIFIER)
    assert message in refused(tmp_path, tensors, "classify", options={}, **files)


def binary_tensors(bias: bool = True) -> dict[str, Tensor]:
    tensors = script_tensors("classify", CLASSIFIER)
    tensors["out.weight"] = tensors["out.weight"][:1].clone()
    tensors["out.bias"] = tensors["out.bias"][:1].clone()
    return tensors if bias else {k: t for k, t in tensors.items() if k != "out.bias"}


@pytest.mark.parametrize("bias", [True, False])
def test_one_output_with_two_labels_is_a_binary_logit(tmp_path: Path, bias: bool) -> None:
    tensors = binary_tensors(bias)
    model = imported(tmp_path, tensors, "classify", options={}, labels=["spam", "ham"])
    assert model.labels == ("spam", "ham")
    h = torch.randn(5, 12, generator=torch.Generator().manual_seed(1))
    z = h @ tensors["out.weight"][0] + (tensors["out.bias"] if bias else 0)
    ours = model.network.logits(h).softmax(-1)
    torch.testing.assert_close(ours, torch.stack((1 - z.sigmoid(), z.sigmoid()), 1))


def test_one_output_with_an_activation_keeps_its_one_label(tmp_path: Path) -> None:
    options = {"activation": "sigmoid"}
    model = imported(tmp_path, binary_tensors(), "classify", options=options, labels=["spam"])
    assert (model.labels, model.config.activation) == (("spam",), "sigmoid")


@pytest.mark.parametrize("labels", [{}, {"labels": ["spam"]}, {"labels": ["a", "b", "c"]}], ids=str)
def test_one_output_without_two_labels_is_refused_with_what_it_may_be(
    tmp_path: Path, labels: Any
) -> None:
    message = refused(tmp_path, binary_tensors(), "classify", options={}, **labels)
    for part in "one output", "binary logit", "two labels in --labels", "--task regress":
        assert part in message


@pytest.mark.parametrize("unknown", ["<oov>", "<unk>", "<UNK>"])
def test_the_entry_for_unknown_words_has_one_of_three_names(tmp_path: Path, unknown: str) -> None:
    tensors = script_tensors("classify", CLASSIFIER)
    model = imported(tmp_path, tensors, "classify", options={}, vocab=["ah", "be", unknown, "see"])
    assert model.codec is not None
    assert model.codec.encode("be never see")[0].tolist() == [1, 2, 3]


def test_a_pooling_can_be_said(tmp_path: Path) -> None:
    tensors = script_tensors("classify", CLASSIFIER)
    model = imported(tmp_path, tensors, "classify", options={"pooling": "mean"})
    assert model.config.head.pooling == "mean"
    other = tmp_path / "other"
    other.mkdir()
    assert "pooling" in refused(other, tensors, "classify", options={"pooling": "median"})


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "assumed: pooling last, activation softmax"),
        ({"pooling": "last"}, "assumed: activation softmax"),
        ({"activation": "softmax"}, "assumed: pooling last"),
        ({"pooling": "mean", "activation": "sigmoid"}, None),
    ],
)
def test_what_an_import_assumes_is_one_line(
    tmp_path: Path, options: dict[str, str], line: str | None
) -> None:
    tensors = script_tensors("classify", CLASSIFIER)
    result = run_import(tmp_path, tensors, "--task", "classify", options=options)
    assert result.exit_code == 0, result.output
    assert [each for each in result.output.splitlines() if "assumed" in each] == [line] * bool(line)


def test_the_steps_of_a_regressor_may_be_assumed(tmp_path: Path) -> None:
    tensors = script_tensors("classify", CLASSIFIER)
    result = run_import(tmp_path, tensors, "--task", "regress", options={})
    assert "assumed: steps last, pooling last\n" in result.output
    tensors = script_tensors("generate", ENWIK8)
    result = run_import(tmp_path, tensors, "--task", "generate", options={})
    assert result.exit_code == 0, result.output
    assert "assumed" not in result.output


def tokenizer_json(**words: int) -> Any:
    tokenizer = Tokenizer(WordLevel(words, unk_token="<oov>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return json.loads(tokenizer.to_str())


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        (tokenizer_json(**{"<oov>": 0, "a": 1}), "2 entries, but the embedding has 4"),
        (tokenizer_json(**{"<oov>": 0, "a": 1, "b": 2, "c": 9}), "without gaps"),
        ({"model": "none"}, "not a usable tokenizer.json"),
    ],
    ids=["too-small", "gap", "other-json"],
)
def test_a_tokenizer_that_does_not_fit_is_refused_and_leaves_the_old_folder(
    tmp_path: Path, vocab: Any, message: str
) -> None:
    tensors = script_tensors("classify", CLASSIFIER)
    assert message in refused(tmp_path, tensors, "classify", options={}, vocab=vocab)
    digest = imported(tmp_path, tensors, "classify", options={}, vocab=WORDS).digest
    result = run_import(tmp_path, tensors, "--task", "classify", options={}, vocab=vocab)
    assert result.exit_code == 1
    assert load_model(tmp_path / "out").digest == digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding_layer.weight": torch.tensor(1.0)}, "embedding.weight has shape []"),
        ({"output_layer.weight": torch.tensor(1.0)}, "output.weight has shape []"),
        ({"embedding_layer.weight": torch.zeros(0, 8)}, "vocab_size"),
        ({f"rnn.rnn_lst.{'9' * 900}.bias": torch.zeros(24)}, "… is not expected"),
        ({"two\nlines \ud800": torch.zeros(2)}, r"two lines \ud800 is not expected"),
    ],
    ids=["embedding-0d", "output-0d", "no-rows", "layer-number", "odd-name"],
)
def test_odd_names_and_shapes_are_one_short_line(
    tmp_path: Path, change: dict[str, Tensor], message: str
) -> None:
    tensors = {**script_tensors("generate", ENWIK8), **change}
    refusal = refused(tmp_path, tensors, "generate", options={})
    assert message in refusal
    assert len(refusal) < 400


def test_a_bidirectional_network_is_refused_as_a_generator(tmp_path: Path) -> None:
    tensors = script_tensors("generate", ENWIK8)
    options = {"bidirectional": True}
    assert "cannot generate" in refused(tmp_path, tensors, "generate", options=options)


@pytest.mark.parametrize("name", ["options", "vocab", "labels"])
def test_json_that_is_nested_too_deep_is_refused(tmp_path: Path, name: str) -> None:
    deep = tmp_path / "deep"
    deep.write_text("[" * 200_000 + "]" * 200_000)
    tensors = script_tensors("classify", CLASSIFIER)
    files: dict[str, Any] = {} if name == "options" else {"options": {}}
    assert "not valid JSON" in refused(
        tmp_path, tensors, "classify", f"--{name}", str(deep), **files
    )


@pytest.mark.parametrize("name", ["vocab", "labels"])
def test_words_that_utf_8_cannot_hold_are_refused(tmp_path: Path, name: str) -> None:
    words = ["<oov>", "a", "\ud800", "b"] if name == "vocab" else ["a", "b", "\ud800"]
    tensors = script_tensors("classify", CLASSIFIER)
    message = refused(tmp_path, tensors, "classify", options={}, **{name: words})
    assert "JSON list of" in message
