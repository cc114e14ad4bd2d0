"""Checkpoints that TensorFlow wrote, of the LRN repository's own graph, answer as that did."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from sruserve.cli import app
from sruserve.model.folder import Model
from sruserve.model.importers.tensorflow.bundle import Bundle
from tests.model.importers.bundles import save_bundle
from tests.model.importers.files import agree, answers, imported, refused, run_import

DATA = Path(__file__).parents[2] / "data/lrn_tf"
CELLS = ("lrn", "atr", "gru", "lstm", "sru")
SERVED = (*CELLS, "characters", "raw")
REFUSED = {"normalised": "layer_norm", "sentences": "enable_hierarchy", "pairs": "of nli/"}
WORDS = (DATA / "characters/vocab.word").read_text().splitlines()
AVERAGE = "/ExponentialMovingAverage"
CHOICES: list[tuple[str, dict[str, float]]] = [
    (AVERAGE, {}),
    ("", {"ema_decay": 0}),
    ("", {"ema_decay": -1.0}),
]
Arrays = dict[str, np.ndarray[Any, Any]]


def variables(name: str) -> Arrays:
    """All variables of floats."""
    bundle = Bundle(DATA / name / "model-5000")
    return {n: bundle.tensor(n).numpy() for n in bundle.shapes if n != "global_step"}


def saved(tmp_path: Path, arrays: Arrays) -> Path:
    save_bundle(tmp_path / "model", arrays)
    return tmp_path / "model.index"


def test_every_file_is_tested() -> None:
    assert {path.name for path in DATA.iterdir() if path.is_dir()} - {"__pycache__"} == {
        *SERVED,
        *REFUSED,
    }


@pytest.mark.parametrize("name", SERVED)
def test_verify_reproduces_the_logits_of_the_repository(tmp_path: Path, name: str) -> None:
    model = imported(tmp_path, DATA / name / "model-5000.index", "classify")
    own = {"characters": "lrn", "raw": "lrn"}.get(name, name)
    assert model.config.model_type == own
    case = str(DATA / name / "case.safetensors")
    result = CliRunner().invoke(app, ["verify", str(tmp_path / "out"), case])
    assert result.exit_code == 0, result.output
    assert "agrees" in result.output


def test_the_moving_averages_are_read_and_the_weights_on_request(tmp_path: Path) -> None:
    path, own = DATA / "lrn/model-5000", variables("lrn")
    for end, options in CHOICES:
        model = imported(tmp_path, path, "classify", options=options)
        expected = torch.from_numpy(own[f"InferNet/label/W_0_0{end}"]).T
        assert torch.equal(model_weight(model, "output.weight"), expected)
        result = run_import(tmp_path, path, "classify", options=options)
        assert ("moving averages of the weights are imported" in output_of(result)) is bool(end)


def model_weight(model: Model, name: str) -> torch.Tensor:
    return load_file(model.path / "model.safetensors")[name]


def output_of(result: Any) -> str:
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    "file", ["", "checkpoint", "model-5000", "model-5000.index", "model-5000.data-00000-of-00001"]
)
def test_any_file_of_a_checkpoint_names_it(tmp_path: Path, file: str) -> None:
    imported(tmp_path, DATA / "lrn" / file, "classify")


def test_pretrained_words_have_no_moving_average(tmp_path: Path) -> None:
    arrays = variables("atr")
    del arrays["InferNet/general_symbol_embeddings/ExponentialMovingAverage"]
    model = imported(tmp_path, saved(tmp_path, arrays), "classify")
    words = torch.from_numpy(arrays["InferNet/general_symbol_embeddings"])
    assert torch.equal(model_weight(model, "embedding.weight")[3:], words)


def test_what_only_the_training_needs_is_left_out(tmp_path: Path) -> None:
    arrays, shape = variables("raw"), np.ones(2)
    weight = f"{ROOT}label/W_0_0"
    for name in ("Adam", "Adam_1", "CTrainOpReplica", "CTrainOpBackUpReplica", "Adam_2"):
        arrays[f"{weight}/{name}"] = shape
    for name in ("loss/CTrainOpReplica", "count/CTrainOpReplica", "beta1_power", "global_step"):
        arrays[name] = shape
    options = {"ema_decay": -1.0}
    model = imported(tmp_path, saved(tmp_path, arrays), "classify", options=options)
    assert torch.equal(model_weight(model, "output.weight").T, torch.from_numpy(arrays[weight]))


def test_the_row_of_padding_is_zeros_and_the_import_says_so(tmp_path: Path) -> None:
    model = imported(tmp_path, DATA / "lrn", "classify")
    assert not model_weight(model, "embedding.weight")[0].any()
    result = run_import(tmp_path, DATA / "lrn", "classify")
    assert "id 0 is padding" in output_of(result)


def test_texts_are_read_with_their_words(tmp_path: Path) -> None:
    words = ["<pad>", "<no-word>", *WORDS[2:]]
    model = imported(tmp_path, DATA / "characters", "classify", vocab=words)
    assert model.codec is not None
    assert model.codec.encode("the film é")[0].tolist() == [3, 4, 9]


@pytest.mark.parametrize("name", REFUSED)
def test_a_network_that_cannot_be_served_is_refused_by_name(tmp_path: Path, name: str) -> None:
    message = refused(tmp_path, DATA / name, "classify")
    assert REFUSED[name] in message
    assert "the variable InferNet/" in message


def changed(name: str, change: Callable[[Arrays], object]) -> Callable[[], Arrays]:
    def make() -> Arrays:
        arrays = variables(name)
        change(arrays)
        return arrays

    return make


ROOT = "InferNet/"
LAYER = f"{ROOT}hierarchy/word_level/rnn_enc_layer_0/fw_rnn/"
ONES = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        (lambda: {"dense/kernel": ONES}, "holds dense/kernel. Of TensorFlow's checkpoints, only"),
        (lambda: {"global_step": ONES}, "holds no variables"),
        (lambda: {"word_mat": ONES, "is_train": ONES, "f": ONES}, "of rc/"),
        (changed("lrn", lambda a: a.update({f"{ROOT}bert/x": ONES})), "enable_bert"),
        (changed("raw", lambda a: a.update({f"{ROOT}other": ONES})), "other is not expected"),
        (changed("lrn", lambda a: a.update({"Other/x": ONES})), "Other/x is not one of"),
        (
            changed("lrn", lambda a: a.pop(f"{ROOT}label/b_0{AVERAGE}")),
            "label/b_0 have no moving average",
        ),
        (changed("raw", lambda a: a.pop(f"{ROOT}label/b_0")), "label/b_0 is missing"),
        (
            changed("raw", lambda a: a.update({f"{ROOT}label/W_0_0": ONES})),
            "label/W_0_0 has shape [2, 3], not [6, 3]",
        ),
        (
            changed("lrn", lambda a: a.update({f"{ROOT}label/W_0_0{AVERAGE}": ONES})),
            "the moving average of label/W_0_0 does not have its shape",
        ),
        (
            changed("raw", lambda a: a.update({f"{ROOT}label/b_0": ONES})),
            "label/b_0 has shape [2, 3]; it must be a vector",
        ),
        (
            changed("raw", lambda a: a.update({f"{LAYER}fetch_state_lrn/hide_x/b_0": ONES[:0, 0]})),
            "hide_x/b_0 has shape [0]; it must be a vector, not empty",
        ),
        (
            changed("raw", lambda a: a.update({f"{LAYER}fetch_state_lrn/hide_x/b_0": ONES[0, :1]})),
            "hide_x/W_0_0 has shape [4, 9], not [4, 0]",
        ),
        (
            changed("raw", lambda a: a.update({f"{ROOT}general_symbol_embeddings": ONES[0]})),
            "it must be a matrix",
        ),
        (
            changed("raw", lambda a: a.update({f"{LAYER}fetch_state_gru/hide_x/W_0_0": ONES})),
            "the variables of lrn and gru",
        ),
        (
            changed("raw", lambda a: a.pop(f"{LAYER}fetch_state_lrn/hide_x/W_0_0")),
            "the variables of no cell",
        ),
        (
            changed("raw", lambda a: a.update({f"{LAYER}fetch_state_lrn/hide_x/b_0": ONES[0]})),
            "has shape [4, 9], not [4, 3]",
        ),
    ],
)
def test_variables_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, arrays: Callable[[], Arrays], problem: str
) -> None:
    assert problem in refused(tmp_path, saved(tmp_path, arrays()), "classify")


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("lrn", {"cell": "gru"}, "option cell is gru; the weights say lrn"),
        ("lrn", {"hidden_size": 5}, "hidden_size is 5; the weights say 3"),
        ("lrn", {"embed_size": 5}, "embed_size is 5; the weights say 4"),
        ("lrn", {"use_char": True}, "use_char is True; the weights say False"),
        ("lrn", {"layer_norm": True}, "layer_norm is True; the weights say False"),
        ("lrn", {"enable_bert": True}, "enable_bert is True; the weights say False"),
        ("lrn", {"enable_hierarchy": True}, "enable_hierarchy is True"),
        ("lrn", {"layer_norm": "no"}, "it must be true or false"),
        ("lrn", {"ema_decay": "no"}, "ema_decay is no; it must be a number"),
        ("lrn", {"cells": "lrn"}, "cells is unknown"),
        ("lrn", {"pooling": "mean"}, "pooling is mean, but the file says attention"),
        ("lrn", {"activation": "sigmoid"}, "activation is sigmoid, but the file says softmax"),
        ("raw", {"ema_decay": 0.9}, "no moving average"),
        ("characters", {"max_w_len": 0}, '"max_w_len"'),
        ("characters", {"char_embed_size": 3}, "char_embed_size is 3; the weights say 2"),
    ],
)
def test_options_that_contradict_the_checkpoint_are_refused(
    tmp_path: Path, name: str, options: dict[str, object], problem: str
) -> None:
    assert problem in refused(tmp_path, DATA / name, "classify", options=options)


@pytest.mark.parametrize("task", ["pair", "tag", "generate", "regress", "encode"])
def test_it_is_a_classifier_only(tmp_path: Path, task: str) -> None:
    assert "with --task classify, not" in refused(tmp_path, DATA / "lrn", task)


def copied(tmp_path: Path, name: str, without: str = "", **files: str) -> Path:
    folder = tmp_path / "train"
    shutil.copytree(DATA / name, folder)
    if without:
        (folder / without).unlink()
    for file, content in files.items():
        (folder / file.replace("_", ".")).write_text(content)
    return folder


@pytest.mark.parametrize(
    ("without", "files", "problem"),
    [
        ("vocab.word", {}, "copy vocab.word"),
        ("vocab.char", {}, "copy vocab.char"),
        ("", {"vocab_word": "a\nb\n"}, "vocab.word has 5 entries, but the embeddings have 10"),
        ("", {"vocab_char": "a\nb\n"}, "vocab.char has 5 entries, but char_embeddings has 15"),
        ("param.json", {}, '"max_w_len"'),
        ("", {"param_json": "["}, "param.json is not valid JSON"),
        ("", {"param_json": "[]"}, "must hold a JSON object"),
        ("", {"checkpoint": "x"}, "names no checkpoint"),
        ("", {"checkpoint": 'model_checkpoint_path: "/tmp/.."'}, "names no checkpoint"),
        ("", {"checkpoint": 'model_checkpoint_path: "/x/other"'}, "train/other.index: No such"),
    ],
)
def test_files_beside_the_checkpoint_must_fit_it(
    tmp_path: Path, without: str, files: dict[str, str], problem: str
) -> None:
    assert problem in refused(
        tmp_path, copied(tmp_path, "characters", without, **files), "classify"
    )


def test_features_of_characters_beyond_the_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sruserve.model.importers.lrn_tf.words.memory_bytes", lambda: 100)
    problem = refused(tmp_path, copied(tmp_path, "characters"), "classify")
    assert "more than half of this machine's memory" in problem


def test_the_best_checkpoint_finds_the_vocabularies_in_the_folder_above(tmp_path: Path) -> None:
    best = copied(tmp_path, "characters") / "best"
    best.mkdir()
    for path in (tmp_path / "train").glob("[!v]*.*"):
        path.rename(best / path.name)
    model = imported(tmp_path, best / "model-5000", "classify")
    case = load_file(DATA / "characters/case.safetensors")
    agree(answers(model, case["tokens"][:5, 0]), case["logits"][0].softmax(0))


def test_a_vocabulary_with_unknown_words_is_refused_where_characters_count(tmp_path: Path) -> None:
    message = refused(tmp_path, DATA / "characters", "classify", vocab=WORDS)
    assert "<unk> would stand for unknown words" in message
    imported(tmp_path, DATA / "lrn", "classify", vocab=WORDS)


def test_words_in_lower_case_are_requested(tmp_path: Path) -> None:
    arguments = json.loads((DATA / "lrn/param.json").read_text()) | {"lower": True}
    folder = copied(tmp_path, "lrn", param_json=json.dumps(arguments))
    result = run_import(tmp_path, folder, "classify")
    assert "import with --lowercase" in output_of(result)
