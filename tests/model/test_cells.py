"""The SRU layer against its equations, written out plainly in float64."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sruserve.kernels import single
from sruserve.model.cells.sru import ResetGate, SRUConfig
from sruserve.model.folder import load_model
from tests.support import random_tensors, save_random_model

FORMS: dict[str, dict[str, Any]] = {
    "released": {},
    "algorithm-1-as-printed": {"reset_gate": "updated"},
    "highway-is-the-input": {"input_size": 24},
    "alpha": {"input_size": 24, "rescale": True},
    "alpha-is-ignored-unless-rescaling": {"input_size": 24, "rescale": False},
    "no-skip": {"has_skip_term": False, "use_tanh": True},
}


def layer(x: Tensor, p: dict[str, Tensor], config: SRUConfig) -> Tensor:
    """One unidirectional layer over x (steps, input): `sru` 2.6.0, or Algorithm 1 of the paper."""
    width = config.hidden_size
    u = (x @ p["weight"]).view(len(x), width, -1)
    (w_f, w_r), (b_f, b_r) = p["weight_c"].view(2, width), p["bias"].view(2, width)
    alpha = p["scale_x"] if config.rescale else 1.0
    c, h = torch.zeros(width, dtype=x.dtype), []
    for t in range(len(x)):
        f = torch.sigmoid(u[t, :, 1] + w_f * c + b_f)
        new = f * c + (1 - f) * u[t, :, 0]
        read = new if config.reset_gate is ResetGate.UPDATED else c
        r = torch.sigmoid(u[t, :, 2] + w_r * read + b_r)
        c = new
        g = c.tanh() if config.use_tanh else c
        skip = u[t, :, 3] if u.shape[2] == 4 else alpha * x[t]
        h.append(r * g + ((1 - r) * skip if config.has_skip_term else 0))
    return torch.stack(h)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_network_computes_the_equations(form: dict[str, Any], tmp_path: Path) -> None:
    model = load_model(save_random_model(tmp_path / "m", "encode", **form))
    rnn = model.config.rnn
    tensors = {name: tensor.double() for name, tensor in random_tensors(model.config).items()}
    inputs = torch.randn(20, rnn.input_size, generator=torch.Generator().manual_seed(1))
    expected = inputs.double()
    for i in range(rnn.num_layers):
        assert isinstance(rnn, SRUConfig)
        names = rnn.layer_shapes(i)
        own = {name: tensors[f"rnn.rnn_lst.{i}.{name}"] for name in names}
        expected = layer(expected, own, rnn)
    result = model.network.hidden(inputs, single(model.network.layout.allocate(1), 20))
    torch.testing.assert_close(result, expected.float(), rtol=0, atol=1e-5)


def test_the_two_reset_gates_differ(tmp_path: Path) -> None:
    inputs, outputs = torch.randn(20, 16), []
    for gate in ("previous", "updated"):
        model = load_model(save_random_model(tmp_path / gate, "encode", reset_gate=gate))
        state = single(model.network.layout.allocate(1), 20)
        outputs.append(model.network.hidden(inputs, state))
    assert (outputs[0] - outputs[1]).abs().max() > 1e-2
