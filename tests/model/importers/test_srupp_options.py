"""What a state dict of SRU++ does not say has to be given as options, and must fit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sruserve.model.cells.srupp import SRUppConfig
from sruserve.model.config import ModelConfig, architecture
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.folder import load_model
from sruserve.model.importers.srupp import read
from sruserve.model.network import network_shapes
from tests.model.importers.srupp_state_dicts import PLAIN, command, experiment, stack, state_dict


@pytest.mark.parametrize("missing", ["num_heads", "window", "bidirectional"])
def test_an_option_that_a_state_dict_does_not_show_is_requested_by_name(missing: str) -> None:
    options = {name: value for name, value in PLAIN.items() if name != missing}
    with pytest.raises(OptionError, match=rf"^{missing} is not stored in a state dict"):
        read(state_dict(stack()), options, "encode")


def test_without_options_all_that_is_missing_is_named() -> None:
    with pytest.raises(OptionError, match="num_heads, window and bidirectional"):
        read(state_dict(stack()), None, "encode")


def test_the_place_of_a_norm_is_requested_where_sizes_do_not_show_it() -> None:
    square = state_dict(stack(input_size=8, layer_norm=True))
    with pytest.raises(OptionError, match=r"^normalize_after is not stored"):
        read(square, PLAIN, "encode")
    for after in (True, False):
        imported = read(square, {**PLAIN, "normalize_after": after}, "encode").rnn
        assert isinstance(imported, SRUppConfig)
        assert imported.normalize_after is after
        normed = read(
            state_dict(stack(layer_norm=True, normalize_after=after)), PLAIN, "encode"
        ).rnn
        assert isinstance(normed, SRUppConfig)
        assert normed.normalize_after is after


@pytest.mark.parametrize("value", [None, {}, [8], "8", 8.5], ids=str)
def test_a_hidden_size_that_is_no_number_is_refused(value: object) -> None:
    options = {"num_heads": 2, "window": 5, "hidden_size": value}
    with pytest.raises(OptionError, match=r"hidden_size is .*; it must be an integer"):
        read(state_dict(stack()), options, "encode")


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden_size": 9},
        {"proj_size": 5},
        {"num_layers": 2},
        {"attention_every_n_layers": 2},
        {"attn_layer_norm": False},
        {"layer_norm": True, "normalization_type": 2},
        {"proj_input_to_hidden_first": 3},
        {"num_heads": 3},
        {"window": 0},
        {"window": 5, "bidirectional": True},
        {"scale_emb": True},
        {"use_tanh": True},
    ],
    ids=str,
)
def test_an_option_that_contradicts_the_weights_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((CheckpointError, OptionError)):
        read(state_dict(stack()), {**PLAIN, **wrong}, "encode")


@pytest.mark.parametrize("shared", [True, False], ids=["wikitext-103", "lm1b"])
def test_an_adaptive_language_model_of_the_experiments_is_read(shared: bool) -> None:
    rnn = stack(input_size=8)
    tensors = experiment(rnn, shared)
    options = {"num_heads": 1, "window": 5, "layer_norm": True}
    imported = read(tensors, options, "generate")
    assert imported.rnn == rnn
    assert imported.vocab_size == 23
    for config in (imported.embedding, imported.head):
        assert (config.cutoffs, config.size, config.divide) == ((5, 12), 8, 2)
    assert imported.head.tied
    assert imported.embedding.scale == 1
    for i in range(3):
        assert imported.tensors[f"embedding.{i}.proj"] is tensors[f"embedding_layer.emb_projs.{i}"]
    model = ModelConfig(
        architectures=(architecture(rnn, "generate"),),
        model_type="srupp",
        task="generate",
        vocab_size=23,
        rnn=rnn,
        embedding=imported.embedding,
        head=imported.head,
    )
    shapes = {name: tuple(tensor.shape) for name, tensor in imported.tensors.items()}
    assert shapes == network_shapes(model)


@pytest.mark.parametrize("widths", [(2, 4, 8), (1 << 21, 1 << 20, 1 << 19)], ids=str)
def test_clusters_of_no_use_are_refused(widths: tuple[int, ...]) -> None:
    tensors = experiment(stack(input_size=8), shared=False)
    for i, width in enumerate(widths):
        name = f"output_layer.out_layers.{i}.weight"
        tensors[name] = torch.zeros(1, 1).expand(len(tensors[name]), width)
    with pytest.raises(CheckpointError, match=r"output_layer\.out_layers"):
        read(tensors, {"num_heads": 1, "window": 5, "layer_norm": True}, "generate")


def test_a_name_that_only_begins_like_a_projection_s_is_no_projection() -> None:
    tensors = experiment(stack(input_size=8), shared=True)
    tensors["output_layer.out_projs.0\n"] = torch.ones(8, 8)
    imported = read(tensors, {"num_heads": 1, "window": 5, "layer_norm": True}, "generate")
    assert "output_layer.out_projs.0\n" in imported.tensors  # to be refused by that name


@pytest.mark.parametrize(
    ("norms", "options", "scaled"),
    [
        ({}, {"layer_norm": True}, False),  # dev1 to dev3, with --layer_norm
        ({}, {"layer_norm": False}, True),  # dev5, dev6
        ({"attn_layer_norm": False}, {}, True),  # dev1, dev2
        ({"layer_norm": True}, {"normalize_after": False}, False),  # dev5, dev6, with it
        ({}, {"scale_emb": True}, True),
    ],
)
def test_a_language_model_trained_without_layer_norm_scales_its_embedding(
    norms: dict[str, bool], options: dict[str, bool], scaled: bool
) -> None:
    tensors = experiment(stack(input_size=8, **norms), shared=True)
    imported = read(tensors, {"num_heads": 1, "window": 5, **options}, "generate")
    assert imported.embedding.scale == (8**0.5 if scaled else 1)


def test_whether_an_embedding_is_scaled_is_requested() -> None:
    tensors = experiment(stack(input_size=8), shared=True)
    with pytest.raises(OptionError, match=r"^layer_norm is not stored"):
        read(tensors, {"num_heads": 1, "window": 5}, "generate")


def test_an_enwik8_model_is_read_whole(tmp_path: Path) -> None:
    tensors = state_dict(stack(input_size=8), "rnn.")
    tensors["embedding_layer.weight"] = torch.randn(9, 8)
    tensors["output_layer.weight"] = torch.randn(9, 8)
    tensors["output_layer.bias"] = torch.randn(9)
    result = command(tmp_path, tensors, "generate", num_heads=1, window=5)
    assert result.exit_code == 0, result.output
    model = load_model(tmp_path / "model")
    assert model.config.vocab_size == 9
    assert model.network.supports_streaming
