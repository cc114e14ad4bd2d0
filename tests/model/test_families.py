"""Every family's guarantees: any split equals the whole, any batch equals single, bit for bit."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.model.cells import FAMILIES
from sruserve.model.network import Network
from tests.support import random_config, random_tensors

FORMS: dict[str, dict[str, Any]] = {
    "sru": {},
    "sru-of-1.x": {"layer_norm": True, "normalize_after": True, "norm": "std", "use_relu": True},
    "sru-of-2.1": {"layer_norm": True, "normalize_after": True, "norm": "unbiased"},
    "sru-selu": {"use_selu": True, "biased_blocks": True, "highway_block": True},
    "sru-all-layers": {"concat_layers": True, "projection_size": [0, 5]},
    "srupp": {"proj_size": 8, "window": 5, "num_heads": 2},
    "srupp-in-chunks": {"proj_size": 8, "window": 4, "layer_norm": True},
    "lrn": {},
    "lrn-identity": {"activation": "identity", "hidden_size": [9, 7]},
    "lrn-olrn": {"output_gate": True},
    "lrn-rms": {"rms_norm": True},
    "qrnn": {},
    "qrnn-window-2": {"window": [2, 1], "hidden_size": [9, 7], "zoneout": 0.1},
    "qrnn-no-gate": {"window": 2, "output_gate": False},
    "qrnn-highway": {"highway": True},
    "lstm": {"hidden_size": [9, 7]},
    "lstm-projected": {"proj_size": 6},
    "lstm-all-layers": {"concat_layers": True, "hidden_size": [9, 7]},
    "gru": {},
    "gru-reset-before": {"reset_after": False},
    "rnn-relu": {"nonlinearity": "relu"},
    "atr": {"activation": "identity"},
    "cnn": {},
    "cnn-padded": {"filter_widths": [5, 1, 3], "hidden_size": [4, 3, 5], "padding": [4, 0, 2]},
    "cnn-filled": {"min_length": 9, "pad_row": True, "activation": "tanh", "bias": False},
    "cnn-mixed": {"filter_widths": [2, 4], "padding": [3, 1], "activation": "identity"},
}
DTYPES = (torch.float32, torch.bfloat16)


def network(form: str, dtype: torch.dtype = torch.float32) -> Network:
    options = {"input_size": 6, "hidden_size": 10, **FORMS[form]}
    config = random_config("encode", model_type=form.split("-")[0], **options)
    return Network(config, random_tensors(config), dtype)


def test_every_family_is_here() -> None:
    assert {form.split("-")[0] for form in FORMS} == set(FAMILIES)


@pytest.fixture(scope="module", params=FORMS)
def networks(request: pytest.FixtureRequest) -> list[Network]:
    return [network(request.param, dtype) for dtype in DTYPES]


def run(model: Network, parts: list[Tensor], states: Tensor, rows: list[int]) -> list[Tensor]:
    """Continue the streams in `rows` of `states` with a part of input each."""
    sizes = [len(part) for part in parts]
    places = torch.tensor(rows)
    batch = RaggedBatch(torch.tensor([0, *sizes]).cumsum(0), states, places, places)
    return list(torch.split(model.hidden(torch.cat(parts), batch), sizes))


@settings(max_examples=12)
@given(
    lengths=st.lists(st.integers(1, 14), min_size=1, max_size=4),
    cuts=st.lists(st.floats(0, 1), max_size=3),
    seed=st.integers(0, 1 << 30),
)
def test_any_split_in_any_company_gives_the_bits_of_the_whole_alone(
    networks: list[Network], lengths: list[int], cuts: list[float], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(n, 6, generator=generator) for n in lengths]
    for model in networks:
        alone, ends = [], []
        for x in inputs:
            state = model.layout.allocate(1)
            alone += run(model, [x], state, [0])
            ends.append(state)
        states = model.layout.allocate(len(inputs))
        outputs: list[list[Tensor]] = [[] for _ in inputs]
        begins = [0] * len(inputs)
        for cut in [*sorted(cuts), 1.0]:
            stops = [round(cut * n) for n in lengths]
            parts = [x[a:b] for x, a, b in zip(inputs, begins, stops, strict=True)]
            if sum(map(len, parts)):
                hidden = run(model, parts, states, list(range(len(inputs))))
                for own, h in zip(outputs, hidden, strict=True):
                    own.append(h)
            begins = stops
        for own, whole in zip(outputs, alone, strict=True):
            assert torch.equal(torch.cat(own), whole)
        assert torch.equal(states, torch.cat(ends))


@pytest.mark.parametrize("form", FORMS)
def test_a_stream_that_is_dropped_or_begins_from_nothing_touches_no_state(form: str) -> None:
    model = network(form)
    x = torch.randn(7, 6)
    offsets, none = torch.tensor([0, 4, 7]), torch.tensor([-1, -1])
    states = torch.full((2, model.layout.width), torch.nan)
    dropped = model.hidden(x, RaggedBatch(offsets, states, none, none))
    assert states.isnan().all()
    zeros = model.layout.allocate(2)
    assert torch.equal(dropped, torch.cat(run(model, [x[:4], x[4:]], zeros, [0, 1])))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_ids_pick_products_that_have_the_bits_of_new_ones(form: str, dtype: torch.dtype) -> None:
    options = {"input_size": 6, "hidden_size": 10, **FORMS[form]}
    family = form.split("-")[0]
    config = random_config("encode", model_type=family, vocab_size=300, **options)
    model = Network(config, random_tensors(config), dtype)
    picks = model._projected is not None or bool(model._compiled and model._compiled.spared)
    assert picks == (family != "srupp" and not form.startswith(("qrnn-window", "qrnn-no-gate")))
    ids = torch.arange(40) * 7 % 300
    rows = torch.arange(2)

    def batch() -> RaggedBatch:
        return RaggedBatch(torch.tensor([0, 11, 40]), model.layout.allocate(2), rows, rows)

    picked, multiplied = batch(), batch()
    every = model.outputs_of_layers(ids, multiplied)
    expected = torch.cat(every, 1) if options.get("concat_layers") else every[-1]
    exact = model._compiled is None  # otherwise see the tests of the stack
    tolerance = 0 if exact else 1e-5
    torch.testing.assert_close(model.hidden(ids, picked), expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(picked.states, multiplied.states, rtol=0, atol=tolerance)


def lrn_with_rms_norm(x: Tensor, weight: Tensor, bias: Tensor, gain: Tensor) -> Tensor:
    """A layer of the LRN repository's document and NLI models."""
    u = x @ weight
    p, q, r = (gain * u / (u.square().mean(1, keepdim=True) + 1e-8).sqrt() + bias).chunk(3, 1)
    h, outputs = torch.zeros(len(bias) // 3), []
    for t in range(len(x)):
        h = torch.tanh(torch.sigmoid(p[t] + h) * r[t] + torch.sigmoid(q[t] - h) * h)
        outputs.append(h)
    return torch.stack(outputs)


def test_lrn_norms_its_whole_product_before_the_bias() -> None:
    model = network("lrn-rms")
    tensors = random_tensors(model.config)
    x = expected = torch.randn(9, 6)
    for i in range(2):
        own = [tensors[f"rnn.layers.{i}.{name}"] for name in ("weight", "bias", "norm")]
        expected = lrn_with_rms_norm(expected, *own)
    (outputs,) = run(model, [x], model.layout.allocate(1), [0])
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_width_for_each_layer_is_listed_or_refused(family: str) -> None:
    options = {"input_size": 4, "hidden_size": [5, 6, 7], "num_layers": 2}
    if family == "srupp":
        options["proj_size"] = 4
    with pytest.raises(ValueError, match="hidden_size"):
        FAMILIES[family].model_validate(options)
