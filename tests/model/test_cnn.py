"""Convolutions over time against `torch.nn`: every width, padding and length."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sruserve.kernels import single
from sruserve.model.cells.cnn import CNNConfig
from sruserve.model.heads.config import HeadConfig
from sruserve.model.network import Network
from tests.support import random_config, random_tensors

INPUTS = 4
OPTIONS: dict[str, Any] = {
    "filter_widths": st.lists(st.integers(1, 6), min_size=1, max_size=3),
    "padding": st.integers(0, 7),
    "min_length": st.integers(1, 10),
    "pad_row": st.booleans(),
    "activation": st.sampled_from(["relu", "tanh", "identity"]),
    "bias": st.booleans(),
}


def convolved(config: CNNConfig, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    """A whole input x (steps, inputs) by torch's convolutions, (filters)."""
    missing = max(0, config.shortest - len(x))
    pad = tensors["rnn.pad"] if config.pad_row else torch.zeros(INPUTS)
    x = torch.cat((x, pad.expand(missing, INPUTS)))
    functions: dict[str, Callable[[Tensor], Tensor]]
    functions = {"relu": torch.relu, "tanh": torch.tanh, "identity": Tensor.clone}
    maxima = []
    for i, (count, width, padding) in enumerate(config.convolutions):
        conv = torch.nn.Conv1d(INPUTS, count, width, padding=padding, bias=config.bias)
        weight = tensors[f"rnn.convs.{i}.weight"].view(width, count, INPUTS).permute(1, 2, 0)
        conv.weight = torch.nn.Parameter(weight)
        if config.bias:
            conv.bias = torch.nn.Parameter(tensors[f"rnn.convs.{i}.bias"])
        maps = functions[config.activation](conv(x.T[None]))
        maxima.append(F.max_pool1d(maps, maps.shape[2])[0, :, 0])
    return torch.cat(maxima)


@settings(max_examples=30)
@given(
    options=st.fixed_dictionaries(OPTIONS),
    length=st.integers(1, 14),
    seed=st.integers(0, 1 << 30),
    data=st.data(),
)
def test_each_step_has_the_answer_of_an_input_that_ends_there(
    options: dict[str, Any], length: int, seed: int, data: st.DataObject
) -> None:
    widths = options["filter_widths"]
    each = st.lists(st.integers(1, 5), min_size=len(widths), max_size=len(widths))
    options["hidden_size"] = data.draw(each)
    options["pad_row"] &= options["padding"] == 0
    config = random_config("encode", model_type="cnn", input_size=INPUTS, **options)
    tensors = random_tensors(config, seed)
    model = Network(config, tensors, torch.float32)
    x = torch.randn(length, INPUTS, generator=torch.Generator().manual_seed(seed))
    ours = model.hidden(x, single(model.layout.allocate(1), length))
    stack = CNNConfig.model_validate(config.rnn.model_dump())
    for end in range(1, length + 1):
        theirs = convolved(stack, tensors, x[:end])
        torch.testing.assert_close(ours[end - 1], theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"padding": [1, 2]}, "padding lists 2 numbers for 3 widths"),
        ({"hidden_size": [1, 2]}, "hidden_size lists 2 widths for 3 filter_widths"),
        ({"num_layers": 2}, "num_layers must be 1"),
        ({"pad_row": True, "padding": 1}, "set padding 0"),
        ({"bidirectional": True}, "cannot be bidirectional"),
        ({"hidden_size": 1 << 16, "filter_widths": [5]}, "the limit is 262,144"),
        ({"filter_widths": []}, "filter_widths"),
        ({"filter_widths": [0]}, "filter_widths"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CNNConfig.model_validate({"input_size": 4, "hidden_size": 5, **options})


def test_a_head_may_not_pool_again() -> None:
    with pytest.raises(ValueError, match="omit pooling, instead of max"):
        random_config(
            "classify", model_type="cnn", labels=("a", "b"), head=HeadConfig(pooling="max")
        )


def test_a_sum_that_rounds_to_minus_zero_has_the_bits_of_any_company() -> None:
    options: dict[str, Any] = {"input_size": 4, "hidden_size": 9, "activation": "identity"}
    config = random_config("encode", model_type="cnn", **options)
    tensors = {
        name: torch.full_like(t, 1e-30 if name.endswith("weight") else -0.0)
        for name, t in random_tensors(config).items()
    }
    model = Network(config, tensors, torch.float32)
    x = torch.full((7, 4), -1e-30)
    whole = model.hidden(x, single(model.layout.allocate(1), 7))
    assert not whole.signbit().any()
