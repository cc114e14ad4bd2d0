"""A DrQA reader's file: its two encoders."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.model.importers.formulas import random, sru_layer
from tests.model.importers.running import agree, hidden, imported, refused

HIDDEN, LAYERS = 6, 3
INPUTS = {"doc_rnn": 17, "question_rnn": 9}


def network(encoder_layers: int = LAYERS, concat: bool = True) -> dict[str, Tensor]:
    width = 2 * HIDDEN
    tensors = {
        "embedding.weight": random(11, 9, seed=1),
        "qemb_match.linear.weight": torch.ones(9, 9),
    }
    for side, (encoder, inputs) in enumerate(INPUTS.items()):
        for i in range(encoder_layers):
            reads, seed = (inputs if i == 0 else width), 100 * side + 10 * i
            own = {
                "weight": random(reads, width * (3 if reads == width else 4), seed=seed),
                "weight_c": random(2 * width, seed=seed + 1),
                "bias": random(2 * width, seed=seed + 2),
                "scale_x": torch.tensor([math.sqrt(3)]),
            }
            tensors |= {f"{encoder}.rnns.{i}.{name}": tensor for name, tensor in own.items()}
    outputs = width * (encoder_layers if concat else 1)
    for end in ("start", "end"):
        tensors[f"{end}_attn.linear.weight"] = random(outputs, outputs, seed=3)
        tensors[f"{end}_attn.linear.bias"] = random(outputs, seed=4)
    tensors["self_attn.linear.weight"] = random(1, outputs, seed=5)
    return tensors


def file(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A file as its model.py saves it."""
    optimizer = {"state": {0: {"step": 7}}, "param_groups": [{"lr": 0.002, "params": [0, 1]}]}
    state = {"network": tensors, "optimizer": optimizer, "updates": 7}
    return {"state_dict": state, "config": {"hidden_size": HIDDEN, "use_qemb": True}, "epoch": 3}


def encoded(tensors: dict[str, Tensor], encoder: str, x: Tensor) -> list[Tensor]:
    """Each layer's outputs. The scale is stored, and `SRUCell` uses it by default."""
    outputs = []
    for i in range(LAYERS):
        own = [tensors[f"{encoder}.rnns.{i}.{name}"] for name in ("weight", "bias", "weight_c")]
        x = sru_layer(x, *own, scale=math.sqrt(3), directions=2)
        outputs.append(x)
    return outputs


@pytest.mark.parametrize("encoder", INPUTS)
@pytest.mark.parametrize("concat", [True, False])
def test_each_encoder_is_imported_with_all_layers_or_the_last(
    tmp_path: Path, encoder: str, concat: bool
) -> None:
    tensors = network(concat=concat)
    model = imported(tmp_path, file(tensors), "encode", options={"encoder": encoder})
    x = random(8, INPUTS[encoder], seed=9)
    layers = encoded(tensors, encoder, x)
    agree(hidden(model, x), torch.cat(layers, 1) if concat else layers[-1])
    assert not model.network.supports_streaming


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (None, 'pass "encoder" in --options'),
        ({"encoder": "both"}, 'pass "encoder" in --options'),
        ({"encoder": "doc_rnn", "concat_layers": False}, "concat_layers is False; the weights say"),
        ({"encoder": "doc_rnn", "surprise": 1}, "surprise is unknown"),
    ],
    ids=str,
)
def test_an_option_that_weights_do_not_show_is_requested(
    tmp_path: Path, options: dict[str, Any] | None, message: str
) -> None:
    files = {} if options is None else {"options": options}
    assert message in refused(tmp_path, file(network()), "encode", **files)


def test_a_reader_without_its_attention_does_not_tell_whether_layers_are_joined(
    tmp_path: Path,
) -> None:
    tensors = {name: t for name, t in network().items() if "_attn" not in name}
    options: dict[str, Any] = {"encoder": "question_rnn"}
    assert '"concat_layers"' in refused(tmp_path, tensors, "encode", options=options)
    x = random(8, 9, seed=9)
    model = imported(tmp_path, tensors, "encode", options={**options, "concat_layers": False})
    agree(hidden(model, x), encoded(tensors, "question_rnn", x)[-1])


def test_an_encoder_has_no_head(tmp_path: Path) -> None:
    message = refused(tmp_path, file(network()), "generate", options={"encoder": "doc_rnn"})
    assert "--task encode" in message
