"""Checkpoints of the reference's scripts, and options that fit a stack or contradict it."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sruserve.model.cells.sru import SRUConfig
from tests.model.importers.formulas import random, sru_layer
from tests.model.importers.running import agree, hidden, imported, log_probs, refused
from tests.model.importers.scripts import (
    CLASSIFIER,
    ENWIK8,
    LABELS,
    RNN,
    WORD_MODEL,
    WORDS,
    script_tensors,
)

TOKENS = torch.tensor([2, 0, 3, 3, 1])


def stack_output(tensors: dict[str, Tensor], prefix: str, x: Tensor) -> Tensor:
    """The two layers of a script's stack, step by step."""
    for i in range(2):
        own = [tensors[f"{prefix}rnn_lst.{i}.{name}"] for name in ("weight", "bias", "weight_c")]
        x = sru_layer(x, *own)
    return x


def test_a_checkpoint_of_the_classification_script_is_imported(tmp_path: Path) -> None:
    tensors = script_tensors("classify", CLASSIFIER)
    model = imported(tmp_path, tensors, "classify", options={}, vocab=WORDS, labels=LABELS)
    assert model.labels == tuple(LABELS)
    assert model.codec is not None
    assert model.codec.encode("the dog  sat")[0].tolist() == [1, 0, 3]
    x = tensors["emb_layer.embedding.weight"][TOKENS]
    expected = stack_output(tensors, "encoder.", x) @ tensors["out.weight"].T + tensors["out.bias"]
    agree(model.network.logits(hidden(model, TOKENS)), expected)


def test_a_checkpoint_of_the_enwik8_script_is_imported(tmp_path: Path) -> None:
    tensors = script_tensors("generate", ENWIK8)
    model = imported(
        tmp_path, tensors, "generate", "--format", "sru", options={}, vocab=[10, 97, 98, 99]
    )
    assert model.codec is not None
    assert model.codec.encode("abc\n")[0].tolist() == [1, 2, 3, 0]
    h = stack_output(tensors, "rnn.", tensors["embedding_layer.weight"][TOKENS])
    scores = h @ tensors["output_layer.weight"].T + tensors["output_layer.bias"]
    agree(log_probs(model, TOKENS), F.log_softmax(scores, -1))


def test_the_word_model_s_tied_layers_are_stored_once(tmp_path: Path) -> None:
    tensors = script_tensors("generate", WORD_MODEL)
    table = random(4, 12, seed=1)
    tensors |= {"embedding_layer.embedding.weight": table, "output_layer.weight": table.clone()}
    tensors |= {"rnn.rnn_lst.0.weight": random(12, 36, seed=2)}
    options = {"v1": True, "rescale": False}
    model = imported(tmp_path, tensors, "generate", options=options, vocab=["a", "b", "c", "</s>"])
    assert model.config.head.tied
    h = stack_output(tensors, "rnn.", table[TOKENS])
    scores = h @ table.T + tensors["output_layer.bias"]
    agree(log_probs(model, TOKENS), F.log_softmax(scores, -1))


@pytest.mark.parametrize(
    "names",
    [
        {"embedding.": "emb.", "rnn.": "sru.", "output.": "fc."},
        {"embedding.": "word_embeddings.", "rnn.": "", "output.": "classifier.1."},
        {"embedding.": "tokens.", "rnn.": "body.", "output.": "linear."},
    ],
    ids=lambda names: "-".join(names.values()),
)
@pytest.mark.parametrize("prefix", ["", "model.", "net.module._orig_mod."])
@pytest.mark.parametrize("task", ["classify", "generate", "tag"])
def test_embedding_stack_and_linear_layer_may_have_any_names(
    tmp_path: Path, names: dict[str, str], prefix: str, task: str
) -> None:
    theirs = script_tensors(task, names)
    content = {"state_dict": {f"{prefix}{name}": tensor for name, tensor in theirs.items()}}
    model = imported(tmp_path, content, task, options={}, vocab=WORDS)
    embedding, rnn, output = names.values()
    x = theirs[f"{embedding}weight"][TOKENS]
    h = stack_output(theirs, rnn, x)
    expected = h @ theirs[f"{output}weight"].T + theirs[f"{output}bias"]
    agree(model.network.logits(hidden(model, TOKENS)), expected)


def test_a_layer_is_named_by_a_rename_if_its_shape_does_not_tell(tmp_path: Path) -> None:
    names = {"embedding.": "tokens.", "output.": "head."}
    tensors = script_tensors("classify", names)
    tensors["tokens.weight"] = random(8, 8, seed=1)
    message = refused(tmp_path, tensors, "classify", options={})
    assert (
        "tokens.weight is not expected ([8, 8]): task classify needs an embedding (8 columns)"
        in message
    )
    assert "--rename OLD=embedding" in message
    renamed = ("--rename", "tokens=embedding")
    model = imported(tmp_path, tensors, "classify", *renamed, options={})
    assert model.config.vocab_size == 8
    h = stack_output(tensors, "rnn.", tensors["tokens.weight"][TOKENS])
    expected = h @ tensors["head.weight"].T + tensors["head.bias"]
    agree(model.network.logits(hidden(model, TOKENS)), expected)


def test_layers_that_the_network_does_not_have_are_refused_by_name(tmp_path: Path) -> None:
    tensors = script_tensors("classify", CLASSIFIER)
    odd = {"norm.weight": torch.ones(12), "norm.bias": torch.ones(12)}
    message = refused(tmp_path, {**tensors, **odd}, "classify", options={})
    assert "norm.weight, norm.bias are not expected ([12], [12])" in message
    odd = {"between.weight": torch.ones(12, 12), "between.bias": torch.ones(12)}
    message = refused(tmp_path, {**tensors, **odd}, "classify", options={})
    assert "between.weight, between.bias are not expected" in message


@pytest.mark.parametrize("name", ["output", "out", "output_layer"])
@pytest.mark.parametrize("task", ["tag", "pair"])
def test_taggers_and_comparers_are_imported(tmp_path: Path, task: str, name: str) -> None:
    tensors = script_tensors(task, {"output.": f"{name}."})
    model = imported(tmp_path, tensors, task, options={"pooling": "last"}, labels=LABELS)
    assert model.config.task == task
    assert model.labels == tuple(LABELS)


def test_a_comparer_s_pooling_and_features_are_read_from_its_head(tmp_path: Path) -> None:
    tensors = script_tensors("pair", {"rnn.": "encoder."})
    tensors["output.weight"] = random(3, 4 * 12, seed=3)
    for side in range(2):
        tensors |= {
            f"output.pool.{side}.weight": random(5, 12, seed=4),
            f"output.pool.{side}.bias": random(5, seed=5),
            f"output.pool.{side}.score": random(5, seed=6),
        }
    head = imported(tmp_path, tensors, "pair", options={}).config.head
    assert (head.pooling, head.latent_size, head.combine) == ("attention", 5, "difference")


def test_a_stack_of_any_name_is_found_but_only_one(tmp_path: Path) -> None:
    tensors = bare(LAYER)
    imported(tmp_path, {f"a.b.{k}": t for k, t in tensors.items()}, "encode", options={})
    two = {f"{side}.{k}": t for side in ("left", "right") for k, t in tensors.items()}
    other = tmp_path / "other"
    other.mkdir()
    assert "2 stacks (left., right.)" in refused(other, two, "encode", options={})


def test_training_options_are_accepted_and_dropped(tmp_path: Path) -> None:
    options = {
        **RNN,
        "dropout": 0.2,
        "highway_bias": -3,
        "rnn_dropout": 0.1,
        "n_proj": 0,
        "v1": False,
        "nn_rnn_compatible_return": True,
        "custom_m": None,
        "amp_recurrence_fp16": True,
        "weight_c_init": 0.5,
        "is_input_normalized": True,
    }
    model = imported(tmp_path, script_tensors("generate", ENWIK8), "generate", options=options)
    assert model.codec is None


def test_an_option_that_a_state_dict_does_not_show_is_requested(tmp_path: Path) -> None:
    tensors = script_tensors("generate", ENWIK8)
    assert "--options" in refused(tmp_path, tensors, "generate")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 7}, "hidden_size is 7; the weights say 12"),
        ({"bidirectional": True, "input_size": "wide"}, "input_size"),
        ({"surprise": 1}, "surprise"),
        ({"custom_m": "mine"}, "custom_m"),
        ({"reset_gate": "both"}, "reset_gate"),
        ([], "JSON object"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: Any, message: str) -> None:
    tensors = script_tensors("classify", CLASSIFIER)
    assert message in refused(tmp_path, tensors, "classify", options=options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoder.rnn_lst.1.bias": None}, "rnn_lst.1.bias is missing"),
        ({"surprise": torch.zeros(2)}, "surprise is not expected"),
        ({"encoder.rnn_lst.1.weight": torch.zeros(12, 37)}, "[12, 37], not [12, 36]"),
        ({"encoder.rnn_lst.0.bias": torch.zeros(3, 3)}, "must be a vector"),
    ],
)
def test_missing_extra_and_misshapen_tensors_are_named(
    tmp_path: Path, change: dict[str, Tensor | None], message: str
) -> None:
    tensors = {**script_tensors("classify", CLASSIFIER), **change}
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    assert message in refused(tmp_path, tensors, "classify", options={})


# What sru 2.6.0 makes of SRU(12, 12) and, with a projection of 10, of SRU(8, 12): a layer ignores a
# projection that is not below both of its widths, and without different widths there is no
# input_to_hidden.
LAYER = {"weight": (12, 36), "weight_c": (24,), "bias": (24,), "scale_x": (1,)}
NARROW = {**LAYER, "weight": (8, 48)}
PROJECTED = {**LAYER, "weight_proj": (12, 10), "weight": (10, 36)}


def bare(*layers: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    return {
        f"rnn_lst.{i}.{name}": torch.ones(shape)
        for i, layer in enumerate(layers)
        for name, shape in layer.items()
    }


@pytest.mark.parametrize(
    "options",
    [
        {"proj_input_to_hidden_first": True},
        {"proj_input_to_hidden_first": False},
        {"projection_size": 12},
        {"projection_size": 64},
        {"projection_size": -1},
        {"n_proj": 12, "projection_size": 12},
        {"layer_norm": False},
        {"bidirectional": False},
        {"input_size": 12, "hidden_size": 12, "num_layers": 2},
    ],
    ids=str,
)
def test_an_option_that_the_library_ignored_is_accepted(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    imported(tmp_path, bare(LAYER, LAYER), "encode", options=options)


@pytest.mark.parametrize("options", [{}, {"projection_size": 10}, {"n_proj": 10}], ids=str)
def test_a_projection_that_only_some_layers_use_is_read_from_them(
    tmp_path: Path, options: dict[str, int]
) -> None:
    tensors = bare(NARROW, PROJECTED)
    rnn = imported(tmp_path, tensors, "encode", options=options).config.rnn
    assert isinstance(rnn, SRUConfig)
    assert (rnn.input_size, rnn.projection_size) == (8, 10)


@pytest.mark.parametrize(
    ("tensors", "options", "message"),
    [
        (bare(NARROW), {"proj_input_to_hidden_first": True}, "input_to_hidden.weight is missing"),
        (bare(LAYER), {"projection_size": 4}, "weight_proj is missing"),
        (bare(LAYER), {"layer_norm": True}, "layer_norm is True; the weights say False"),
        (bare(PROJECTED), {"projection_size": 9}, "is 9; the weights say 10"),
        (bare(PROJECTED), {"projection_size": -1}, "is -1; the weights say 10"),
        (bare(PROJECTED), {"projection_size": 9, "n_proj": 10}, "are the same option but differ"),
        (bare(LAYER), {"bidirectional": "no"}, "bidirectional is no; it must be true or false"),
        (
            {**bare(LAYER), "input_to_hidden.weight": torch.zeros(12, 5)},
            {"proj_input_to_hidden_first": False},
            "is False; the weights say True",
        ),
        ({**bare(LAYER), "input_to_hidden.weight": torch.tensor(1.0)}, {}, "must be a matrix"),
        ({**bare(LAYER), "rnn_lst.0.weight_proj": torch.tensor(1.0)}, {}, "must be a matrix"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_an_option_that_the_weights_contradict_is_refused(
    tmp_path: Path, tensors: dict[str, Tensor], options: dict[str, Any], message: str
) -> None:
    assert message in refused(tmp_path, tensors, "encode", options=options)


@pytest.mark.parametrize("options", [{"\ud800": 1}, {"reset_gate": "\ud800"}], ids=ascii)
def test_options_that_utf_8_cannot_hold_are_refused(tmp_path: Path, options: Any) -> None:
    refused(tmp_path, bare(LAYER), "encode", options=options)


def normed(inputs: int, size: int, prefix: str = "") -> dict[str, Tensor]:
    """A layer of 3.0.0.dev, 12 wide, with a norm of `size`."""
    own = {
        "transform_module.weight": random(36 if inputs == 12 else 48, inputs, seed=1),
        "weight_c": random(24, seed=2),
        "bias": random(24, seed=3),
        "scale_x": torch.ones(1),
        "layer_norm.weight": random(size, seed=4),
        "layer_norm.bias": random(size, seed=5),
    }
    return {f"{prefix}{name}": tensor for name, tensor in own.items()}


def test_a_bare_cell_of_3_0_norms_its_output_and_a_stack_its_input(tmp_path: Path) -> None:
    """`SRUCell(normalize_after=True)` there, `SRU(normalize_after=False)`."""
    own = normed(12, 12)
    affine = own["layer_norm.weight"], own["layer_norm.bias"]
    layer = own["transform_module.weight"].T, own["bias"], own["weight_c"]
    x = random(5, 12, seed=9)
    for name in ("cell", "stack"):
        (tmp_path / name).mkdir()
    cell = imported(tmp_path / "cell", own, "encode", options={})
    agree(hidden(cell, x), F.layer_norm(sru_layer(x, *layer), (12,), *affine))
    stack = imported(tmp_path / "stack", normed(12, 12, "rnn_lst.0."), "encode", options={})
    before = F.layer_norm(x, (12,), *affine)
    agree(hidden(stack, x), sru_layer(before, *layer, residual=x))


@pytest.mark.parametrize("prefix", ["", "rnn_lst.0."], ids=["cell", "stack"])
@pytest.mark.parametrize(("size", "after"), [(8, False), (12, True)])
def test_a_norm_s_size_tells_where_it_stands(
    tmp_path: Path, prefix: str, size: int, after: bool
) -> None:
    tensors = normed(8, size, prefix)
    rnn = imported(tmp_path, tensors, "encode", options={}).config.rnn
    assert isinstance(rnn, SRUConfig)
    assert rnn.normalize_after is after
    (tmp_path / "other").mkdir()
    options = {"normalize_after": not after}
    message = refused(tmp_path / "other", tensors, "encode", options=options)
    assert f"normalize_after is {not after}; the weights say {after}" in message


def test_another_module_s_input_to_hidden_is_not_the_stack_s(tmp_path: Path) -> None:
    tensors = {**script_tensors("generate", ENWIK8), "other.input_to_hidden.weight": torch.eye(8)}
    message = refused(tmp_path, tensors, "generate", options={})
    assert "other.input_to_hidden.weight is not expected" in message


def test_layers_whose_numbers_are_beyond_any_stack_are_no_layers(tmp_path: Path) -> None:
    tensors = {"rnn_lst.999999999.weight": torch.ones(12, 36)}
    message = refused(tmp_path, tensors, "encode", "--format", "sru", options={})
    assert "no rnn_lst.* tensors" in message
    tensors = {**normed(12, 12, "rnn_lst.0."), "rnn_lst.00.bias": torch.ones(24)}
    message = refused(tmp_path, tensors, "encode", options={})
    assert "rnn_lst.00.bias is not expected" in message


def test_a_checkpoint_of_sru_pp_is_sent_to_its_own_format(tmp_path: Path) -> None:
    tensors = {"rnn_lst.0.transform_module.linear1.weight": torch.ones(4, 8)}
    arguments = ("--format", "sru")
    assert "--format srupp" in refused(tmp_path, tensors, "encode", *arguments, options={})
