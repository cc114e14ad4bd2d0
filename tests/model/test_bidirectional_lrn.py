"""LRN layers in both directions, alone and under an attention that reads where they end."""

from typing import Any

import pytest
import torch
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.model.cells.lrn import LRNConfig
from sruserve.model.heads.config import HeadConfig
from sruserve.model.network import Network
from tests.support import random_config, random_tensors

LENGTHS = [5, 1, 33, 80, 2, 600]
ATTENTION = [
    {"type": "linear", "size": 6},
    {"type": "activation", "function": "tanh"},
    {"type": "linear", "size": 1, "bias": False},
]
WIDTHS = (5, 7)
SIZES: dict[str, Any] = {
    "input_size": 6,
    "hidden_size": WIDTHS,
    "num_layers": 2,
    "bidirectional": True,
}


def direction(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One direction of a layer; weight (in, 3, width)."""
    h, outputs = torch.zeros(bias.shape[1]), []
    for p, q, r in torch.einsum("ti,ibw->tbw", x, weight) + bias:
        h = torch.tanh(torch.sigmoid(p + h) * r + torch.sigmoid(q - h) * h)
        outputs.append(h)
    return torch.stack(outputs)


def layers(x: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    for i, width in enumerate(WIDTHS):
        weight = tensors[f"rnn.layers.{i}.weight"].view(x.shape[1], 3, 2, width)
        bias = tensors[f"rnn.layers.{i}.bias"].view(3, 2, width)
        forward = direction(x, weight[:, :, 0], bias[:, 0])
        backward = direction(x.flip(0), weight[:, :, 1], bias[:, 1]).flip(0)
        x = torch.cat((forward, backward), 1)
    return x


def parts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(n, 6, generator=generator) for n in LENGTHS]


def batch(network: Network, sizes: list[int]) -> RaggedBatch:
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), torch.tensor(sizes).cumsum(0)))
    nowhere = torch.full((len(sizes),), -1)
    return RaggedBatch(offsets, network.layout.allocate(1), nowhere, nowhere)


def classifier() -> tuple[Network, dict[str, Tensor]]:
    head = {"pooling": "attention", "attention": ATTENTION, "attention_final": True}
    config = random_config(
        "classify",
        model_type="lrn",
        labels=("a", "b", "c"),
        head=HeadConfig.model_validate(head),
        **SIZES,
    )
    tensors = random_tensors(config)
    return Network(config, tensors, torch.float32), tensors


def logits(network: Network, inputs: list[Tensor]) -> Tensor:
    own = batch(network, [len(x) for x in inputs])
    return network.logits(network.hidden(torch.cat(inputs), own, own.offsets[1:] - 1))


def test_each_direction_has_its_own_columns_of_every_block() -> None:
    config = random_config("encode", model_type="lrn", **SIZES)
    tensors = random_tensors(config)
    network, inputs = Network(config, tensors, torch.float32), parts()
    hidden = network.hidden(torch.cat(inputs), batch(network, LENGTHS))
    for own, x in zip(torch.split(hidden, LENGTHS), inputs, strict=True):
        torch.testing.assert_close(own, layers(x, tensors), atol=1e-5, rtol=0)
    assert "bidirectional" in str(network.not_streamable_because)


def test_attention_reads_each_step_beside_the_final_outputs() -> None:
    network, tensors = classifier()
    expected = []
    for x in parts():
        h = layers(x, tensors)
        final = torch.cat((h[-1, :7], h[0, 7:])).expand_as(h)
        inner = torch.cat((h, final), 1) @ tensors["pool.0.weight"].T + tensors["pool.0.bias"]
        weights = (inner.tanh() @ tensors["pool.2.weight"].T).softmax(0)
        pooled = (weights * h).sum(0)
        expected.append(tensors["output.weight"] @ pooled + tensors["output.bias"])
    torch.testing.assert_close(logits(network, parts()), torch.stack(expected), atol=1e-5, rtol=0)


def test_an_answer_does_not_depend_on_its_company() -> None:
    network, _ = classifier()
    alone = [logits(network, [x]) for x in parts()]
    assert torch.equal(logits(network, parts()), torch.cat(alone))


def test_the_norm_of_a_product_is_that_of_one_direction() -> None:
    with pytest.raises(ValueError, match="rms_norm is for one direction"):
        LRNConfig.model_validate(SIZES | {"rms_norm": True})


@pytest.mark.parametrize(
    ("model", "head", "says"),
    [
        ({}, {"attention_final": True}, "attention_final is for pooling attention"),
        (
            {"concat_layers": True},
            {"pooling": "attention", "attention": ATTENTION, "attention_final": True},
            "concatenates its layers",
        ),
    ],
)
def test_final_outputs_are_those_of_the_last_layer(
    model: dict[str, Any], head: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        random_config("classify", labels=("a", "b"), head=HeadConfig.model_validate(head), **model)


def test_scores_that_read_the_final_outputs_need_the_whole_input() -> None:
    head = {"pooling": "attention", "attention": ATTENTION, "attention_final": True}
    config = random_config("classify", labels=("a", "b"), head=HeadConfig.model_validate(head))
    assert config.not_streamable_because == "its attention reads the final outputs of an input"
