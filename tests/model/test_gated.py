"""LSTM, GRU, RNN and ATR stacks: torch's numbers, the published formulas, and equal bits."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

import sruserve.kernels.gated as gated_module
from sruserve.kernels import RaggedBatch
from sruserve.kernels.reference.gated import reference_gated_scan
from sruserve.model.cells import FAMILIES
from sruserve.model.cells.stack import StackConfig
from sruserve.model.config import ModelConfig, architecture
from sruserve.model.network import Network

GOLDEN = Path(__file__).parent.parent / "golden"
TORCH: dict[str, type[torch.nn.RNNBase]] = {
    "lstm": torch.nn.LSTM,
    "gru": torch.nn.GRU,
    "rnn": torch.nn.RNN,
}
DTYPES = [torch.float32, torch.bfloat16]


def network(
    rnn: StackConfig, tensors: dict[str, Tensor], dtype: torch.dtype = torch.float32
) -> Network:
    """A bare stack of these weights."""
    config = ModelConfig(
        architectures=(architecture(rnn, "encode"),),
        model_type=rnn.family,
        task="encode",
        vocab_size=None,
        rnn=rnn,
    )
    assert {name: tuple(t.shape) for name, t in tensors.items()} == rnn.shapes()
    return Network(config, {f"rnn.{name}": t.detach() for name, t in tensors.items()}, dtype)


def random_network(
    family: str, dtype: torch.dtype = torch.float32, **options: Any
) -> tuple[Network, dict[str, Tensor]]:
    rnn = FAMILIES[family](**{"input_size": 9, "hidden_size": 20, "num_layers": 2, **options})
    g = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(*s, generator=g) * 0.3 for name, s in rnn.shapes().items()}
    return network(rnn, tensors, dtype), tensors


def some(*size: int, seed: int = 1) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def run(net: Network, xs: list[Tensor], states: Tensor) -> list[Tensor]:
    """Continue row b of `states` with xs[b]; return each sequence's outputs."""
    sizes, rows = [len(x) for x in xs], torch.arange(len(xs))
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    h = net.hidden(torch.cat(xs), RaggedBatch(offsets, states, rows, rows))
    return list(torch.split(h, sizes))


@st.composite
def torch_cases(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A family and arguments of torch's constructor."""
    family = draw(st.sampled_from(list(TORCH)))
    options: dict[str, Any] = {
        "input_size": draw(st.integers(1, 40)),
        "hidden_size": draw(st.integers(2, 70)),
        "num_layers": draw(st.integers(1, 3)),
        "bidirectional": draw(st.booleans()),
        "bias": draw(st.booleans()),
    }
    if family == "lstm" and draw(st.booleans()):
        options["proj_size"] = draw(st.integers(1, options["hidden_size"] - 1))
    if family == "rnn":
        options["nonlinearity"] = draw(st.sampled_from(["tanh", "relu"]))
    return family, options


@pytest.mark.parametrize("kernel", ["compiled", "reference"])
@given(
    which=torch_cases(),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=7),
    started=st.booleans(),
)
@settings(max_examples=60)
def test_it_computes_what_torch_computes(
    kernel: str, which: tuple[str, dict[str, Any]], lengths: list[int], started: bool
) -> None:
    family, options = which
    torch.manual_seed(len(lengths))
    theirs = TORCH[family](**options).eval()
    net = network(FAMILIES[family](**options), dict(theirs.state_dict()))
    rnn = net.config.rnn
    xs = [some(length, rnn.input_size, seed=i) for i, length in enumerate(lengths)]
    states = net.layout.allocate(len(xs))
    if started:
        states.normal_()
    begun = {name: t.clone() for name, t in net.layout.unpack(states).items()}
    letters = "hc" if family == "lstm" else "h"

    def as_torch(entries: dict[str, Tensor], letter: str) -> Tensor:
        """(layers * directions, sequences, width)"""
        layers = [entries[f"{i}.{letter}"] for i in range(rnn.num_layers)]
        return torch.cat([part for t in layers for part in t.chunk(rnn.directions, 1)]).view(
            rnn.num_layers * rnn.directions, len(xs), -1
        )

    start = tuple(as_torch(begun, letter) for letter in letters)
    with pytest.MonkeyPatch.context() as patch:
        if kernel == "reference":
            patch.setattr(gated_module, "gated_scan", reference_gated_scan)
        ours = run(net, xs, states)
    with torch.inference_mode():
        packed, end = theirs(
            pack_sequence(xs, enforce_sorted=False), start if len(start) > 1 else start[0]
        )
    for h, expected in zip(ours, unpack_sequence(packed), strict=True):
        torch.testing.assert_close(h, expected, rtol=1e-5, atol=1e-5)
    after = net.layout.unpack(states)
    for letter, expected in zip(letters, end if len(start) > 1 else [end], strict=True):
        torch.testing.assert_close(as_torch(after, letter), expected, rtol=1e-5, atol=1e-5)


def test_the_gru_of_the_lrn_repository_gives_its_golden_numbers() -> None:
    weights = torch.load(GOLDEN / "lrn-repo-gru" / "weights.pt", weights_only=True)
    golden = load_file(GOLDEN / "lrn-repo-gru" / "io.safetensors")
    tensors = {}
    for i, inputs in enumerate((20, 32)):
        both = torch.cat((weights[f"cell_{i}._W"], weights[f"cell_{i}._U"]), 1).T
        tensors[f"weight_ih_l{i}"], tensors[f"weight_hh_l{i}"] = both[:, :inputs], both[:, inputs:]
        bias = torch.cat((weights[f"cell_{i}._W_b"], weights[f"cell_{i}._U_b"]))
        tensors[f"bias_ih_l{i}"], tensors[f"bias_hh_l{i}"] = bias, torch.zeros_like(bias)
    rnn = FAMILIES["gru"].model_validate(
        {"input_size": 20, "hidden_size": 32, "num_layers": 2, "reset_after": False}
    )
    net = network(rnn, tensors)
    states = net.layout.pack({f"{i}.h": golden["h_0"][i] for i in range(2)})
    h = run(net, list(golden["x"].unbind(1)), states)
    torch.testing.assert_close(torch.stack(h, 1), golden["h"], rtol=0, atol=1e-5)
    ends = torch.stack(list(net.layout.unpack(states).values()))
    torch.testing.assert_close(ends, golden["h_n"], rtol=0, atol=1e-5)


@given(
    hidden=st.integers(1, 50),
    steps=st.integers(1, 9),
    activation=st.sampled_from(["tanh", "identity"]),
    bias=st.booleans(),
)
def test_an_atr_takes_its_gates_starteda_sum_and_a_difference(
    hidden: int, steps: int, activation: str, bias: bool
) -> None:
    options: dict[str, Any] = {
        "hidden_size": hidden,
        "activation": activation,
        "bias": bias,
        "num_layers": 1,
    }
    net, tensors = random_network("atr", **options)
    x, h = some(steps, 9), some(1, hidden, seed=2)
    states = h.clone()
    (ours,) = run(net, [x], states)
    zero = torch.zeros(hidden)
    for t in range(steps):
        p = x[t] @ tensors["weight_ih_l0"].T + tensors.get("bias_ih_l0", zero)
        q = h @ tensors["weight_hh_l0"].T + tensors.get("bias_hh_l0", zero)
        h = torch.sigmoid(p + q) * p + torch.sigmoid(p - q) * h
        h = torch.tanh(h) if activation == "tanh" else h
        torch.testing.assert_close(ours[t], h[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(states, h, rtol=1e-5, atol=1e-5)


FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("lstm", {}),
    "lstm-projected": ("lstm", {"proj_size": 7}),
    "gru": ("gru", {}),
    "gru-reset-before": ("gru", {"reset_after": False}),
    "rnn": ("rnn", {}),
    "atr": ("atr", {}),
    "widths": ("lstm", {"hidden_size": (12, 30, 9), "num_layers": 3}),
    "deep": ("gru", {"hidden_size": 1040, "input_size": 1040, "num_layers": 1}),
}
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])


@pytest.fixture(scope="module", params=FORMS, ids=str)
def form(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return FORMS[request.param]


@EACH_DTYPE
@settings(max_examples=8)
@given(cuts=st.sets(st.integers(1, 39), max_size=5))
def test_any_split_of_a_sequence_gives_the_same_bits(
    form: tuple[str, dict[str, Any]], dtype: torch.dtype, cuts: set[int]
) -> None:
    net, _ = random_network(form[0], dtype, **form[1])
    x = some(40, net.config.rnn.input_size)
    states, split_states, parts = net.layout.allocate(1), net.layout.allocate(1), []
    (whole,) = run(net, [x], states)
    for first, last in pairwise([0, *sorted(cuts), 40]):
        parts += run(net, [x[first:last]], split_states)
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(split_states, states)


@EACH_DTYPE
@settings(max_examples=6)
@given(lengths=st.lists(st.integers(1, 30), min_size=2, max_size=9))
def test_company_changes_no_bit(
    form: tuple[str, dict[str, Any]], dtype: torch.dtype, lengths: list[int]
) -> None:
    net, _ = random_network(form[0], dtype, **form[1])
    xs = [some(n, net.config.rnn.input_size, seed=i) for i, n in enumerate(lengths)]
    states = net.layout.allocate(len(xs))
    together = run(net, xs, states)
    for i, x in enumerate(xs):
        own = net.layout.allocate(1)
        assert torch.equal(run(net, [x], own)[0], together[i])
        assert torch.equal(own[0], states[i])


@EACH_DTYPE
def test_a_large_batch_is_cut_along_time_and_no_bit_changes(dtype: torch.dtype) -> None:
    net, _ = random_network("lstm", dtype)
    lengths = [400, 3, 900, 1, 350]
    xs = [some(n, 9, seed=i) for i, n in enumerate(lengths)]
    states = net.layout.allocate(len(xs))
    together = run(net, xs, states)
    for i, x in enumerate(xs):
        own = net.layout.allocate(1)
        assert torch.equal(run(net, [x], own)[0], together[i])
        assert torch.equal(own[0], states[i])
    offsets, rows = torch.tensor([0, *lengths]).cumsum(0), torch.arange(len(xs))
    output_rows = torch.tensor([0, 399, 402, 1302, 1653])
    begin = RaggedBatch(offsets, net.layout.allocate(len(xs)), rows, rows)
    result = net.hidden(torch.cat(xs), begin, output_rows)
    assert torch.equal(result, torch.cat(together)[output_rows])


def test_a_bidirectional_stack_reads_whole_inputs_only() -> None:
    net, _ = random_network("gru", bidirectional=True)
    assert not net.supports_streaming
    assert "bidirectional" in (net.not_streamable_because or "")


def test_a_projection_must_be_narrower_than_what_it_projects() -> None:
    with pytest.raises(ValueError, match=r"proj_size \(.*\) must be smaller"):
        FAMILIES["lstm"].model_validate({"input_size": 3, "hidden_size": 4, "proj_size": 4})
