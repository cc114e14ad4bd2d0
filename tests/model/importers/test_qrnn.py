"""Stacks of pytorch-qrnn, and AWD's language models."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.model.importers.formulas import qrnn_layer, random
from tests.model.importers.running import agree, hidden, imported, log_probs, refused


def linear(inputs: int, width: int, window: int, gate: bool, seed: int) -> dict[str, Tensor]:
    rows = width * (3 if gate else 2)
    return {
        "weight": random(rows, window * inputs, seed=seed, spread=0.5),
        "bias": random(rows, seed=seed + 1),
    }


def stack(*layers: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    return {
        f"{prefix}layers.{i}.linear.{name}": tensor
        for i, own in enumerate(layers)
        for name, tensor in own.items()
    }


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("zoneout", [0.0, 0.25])
@pytest.mark.parametrize("prefix", ["", "rnn."])
def test_a_stack_gives_the_layers_step_by_step(
    tmp_path: Path, window: int, gate: bool, zoneout: float, prefix: str
) -> None:
    layers = [linear(5, 8, window, gate, 0), linear(8, 8, window, gate, 10)]
    options = {"window": window, "output_gate": gate, "zoneout": zoneout, "hidden_size": 8}
    model = imported(tmp_path, stack(*layers, prefix=prefix), "encode", options=options)
    x = expected = random(7, 5, seed=30)
    for own in layers:
        expected = qrnn_layer(expected, own["weight"], own["bias"], window, gate, zoneout)
    agree(hidden(model, x), expected)


def test_one_layer_alone_is_a_stack(tmp_path: Path) -> None:
    own = linear(5, 8, 1, True, 0)
    tensors = {f"linear.{name}": tensor for name, tensor in own.items()}
    model = imported(tmp_path, tensors, "encode", "--format", "qrnn", options={})
    x = random(4, 5, seed=30)
    agree(hidden(model, x), qrnn_layer(x, own["weight"], own["bias"], 1))


def test_a_highway_is_the_input_or_a_product_of_it(tmp_path: Path) -> None:
    """The SRU paper's own baseline; its file has four blocks of rows where widths differ."""
    wide = {"weight": random(32, 5, seed=1), "bias": random(32, seed=2)}
    layers = [wide, linear(8, 8, 1, True, 10)]
    options = {"highway": True, "hidden_size": 8}
    model = imported(tmp_path, stack(*layers), "encode", options=options)
    x = expected = random(7, 5, seed=30)
    for own in layers:
        expected = qrnn_layer(expected, own["weight"], own["bias"], 1, highway=True)
    agree(hidden(model, x), expected)


def test_the_hidden_size_tells_the_blocks_of_a_highway_that_may_have_three_or_four(
    tmp_path: Path,
) -> None:
    """12 rows for 4 inputs: 4 channels with the input, or 3 with a product of it."""
    own = {"weight": random(12, 4, seed=1), "bias": random(12, seed=2)}
    x = random(5, 4, seed=30)
    for width in (3, 4):
        options = {"highway": True, "hidden_size": width}
        model = imported(tmp_path, stack(own), "encode", options=options)
        expected = qrnn_layer(x, own["weight"], own["bias"], 1, highway=True, width=width)
        agree(hidden(model, x), expected)
    (tmp_path / "no").mkdir()
    message = refused(tmp_path / "no", stack(own), "encode", options={"highway": True})
    assert "4 channels or 3; pass hidden_size in --options" in message
    options = {"highway": True, "hidden_size": 5}
    assert "3 or 4 for each" in refused(tmp_path / "no", stack(own), "encode", options=options)


def test_the_next_layer_tells_the_blocks_of_a_highway(tmp_path: Path) -> None:
    first, second = random(12, 4, seed=1), random(9, 3, seed=2)
    layers = [{"weight": w, "bias": torch.zeros(len(w))} for w in (first, second)]
    rnn = imported(tmp_path, stack(*layers), "encode", options={"highway": True}).config.rnn
    assert rnn.hidden_size == 3


def test_windows_may_differ_by_layer_in_a_language_model(tmp_path: Path) -> None:
    layers = [linear(6, 9, 2, True, 0), linear(9, 6, 1, True, 10)]
    table, bias = random(11, 6, seed=20), random(11, seed=21)
    tensors = stack(*layers, prefix="qrnn.")
    tensors |= {"encoder.weight": table, "decoder.weight": table, "decoder.bias": bias}
    model = imported(tmp_path, tensors, "generate", options={"window": [2, 1]})
    tokens = torch.tensor([3, 10, 0, 4, 4])
    h = table[tokens]
    for own, window in zip(layers, [2, 1], strict=True):
        h = qrnn_layer(h, own["weight"], own["bias"], window)
    agree(log_probs(model, tokens), F.log_softmax(h @ table.T + bias, -1))


LAYER = stack(linear(5, 8, 1, True, 0))


@pytest.mark.parametrize(
    ("tensors", "options", "message"),
    [
        (LAYER, None, "window, output_gate, zoneout are not stored in a state dict"),
        (LAYER, {"window": 3}, "1 or 2"),
        (LAYER, {"window": [1, 1]}, "1 or 2"),
        (LAYER, {"window": True}, "1 or 2"),
        (LAYER, {"window": 1.0}, "1 or 2"),
        (LAYER, {"window": [1.0]}, "1 or 2"),
        (LAYER, {"window": 2}, "with window 2"),
        (LAYER, {"hidden_size": 12}, "hidden_size is 12; the weights say 8"),
        (LAYER, {"zoneout": 2}, "zoneout"),
        (LAYER, {"surprise": 2}, "surprise is unknown"),
        (
            stack(linear(4, 8, 1, True, 0), linear(8, 8, 1, True, 2)),
            {"window": 2},
            "correct window or output_gate",
        ),
        (stack(linear(4, 7, 1, True, 0)), {"output_gate": False}, "output_gate False"),
        ({**LAYER, "layers.0.linear.extra": torch.ones(2)}, {}, "extra is not expected: remove it"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, tensors: dict[str, Tensor], options: dict[str, Any] | None, message: str
) -> None:
    files = {} if options is None else {"options": options}
    assert message in refused(tmp_path, tensors, "encode", **files)
