"""The language models of awd-lstm-lm, with QRNN and with LSTM layers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.model.importers.formulas import qrnn_layer, random
from tests.model.importers.running import agree, imported, log_probs, refused

WORDS, SIZE, HIDDEN = 11, 6, 9
SIZES = [(SIZE, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, SIZE)]
TOKENS = torch.tensor([3, 10, 0, 4, 4, 1])
TABLE, BIAS = random(WORDS, SIZE, seed=20), random(WORDS, seed=21)
AROUND = {"encoder.weight": TABLE, "decoder.weight": TABLE, "decoder.bias": BIAS}


def qrnn_tensors(masked: bool) -> dict[str, Tensor]:
    """masked: after a forward pass, which leaves the dropped weights beside the raw ones."""
    tensors = dict(AROUND)
    for i, (inputs, width) in enumerate(SIZES):
        prefix, window = f"rnns.{i}.linear.module.", 2 if i == 0 else 1
        raw = random(3 * width, window * inputs, seed=i, spread=0.5)
        tensors |= {f"{prefix}bias": random(3 * width, seed=10 + i), f"{prefix}weight_raw": raw}
        if masked:
            tensors[f"{prefix}weight"] = F.dropout(raw, 0.5)
    return tensors


@pytest.mark.parametrize("masked", [True, False])
def test_the_qrnn_model_has_window_2_in_its_first_layer_alone(tmp_path: Path, masked: bool) -> None:
    tensors = qrnn_tensors(masked)
    options = {"rnn_type": "QRNN", "ninp": SIZE, "nhid": HIDDEN, "nlayers": 3, "wdrop": 0.5}
    model = imported(tmp_path, tensors, "generate", options=options)
    assert model.config.head.tied
    h = TABLE[TOKENS]
    for i in range(3):
        prefix = f"rnns.{i}.linear.module."
        weight, bias = tensors[f"{prefix}weight_raw"], tensors[f"{prefix}bias"]
        h = qrnn_layer(h, weight, bias, 2 if i == 0 else 1)
    agree(log_probs(model, TOKENS), F.log_softmax(h @ TABLE.T + BIAS, -1))


@pytest.mark.parametrize("dropped", [True, False])
def test_the_lstm_model_is_a_stack_of_one_layer_lstms(tmp_path: Path, dropped: bool) -> None:
    torch.manual_seed(3)
    rnns = [torch.nn.LSTM(inputs, width) for inputs, width in SIZES]
    tensors = dict(AROUND)
    for i, rnn in enumerate(rnns):
        for name, tensor in rnn.state_dict().items():
            if dropped:
                name = f"module.{name}{'_raw' if name == 'weight_hh_l0' else ''}"
            tensors[f"rnns.{i}.{name}"] = tensor
    model = imported(tmp_path, tensors, "generate")
    with torch.inference_mode():
        h = TABLE[TOKENS]
        for rnn in rnns:
            h = rnn(h)[0]
        agree(log_probs(model, TOKENS), F.log_softmax(h @ TABLE.T + BIAS, -1))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"nhid": 8}, "nhid is 8; the weights say 9"),
        ({}, {"rnn_type": "LSTM"}, "rnn_type is LSTM; the weights say QRNN"),
        ({"rnns.1.linear.module.weight_raw": torch.ones(27, 8)}, {}, "weight has 8 inputs"),
        ({"rnns.1.linear.module.weight_raw": torch.ones(27)}, {}, "must be a matrix"),
        ({"decoder.weight": torch.ones(4)}, {}, "must be a matrix"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, change: dict[str, Tensor], options: dict[str, Any], message: str
) -> None:
    assert message in refused(
        tmp_path, {**qrnn_tensors(False), **change}, "generate", options=options
    )
