"""Whole networks, as people write them in torch: ours give the modules' own answers."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sruserve.kernels import RaggedBatch
from sruserve.model.config import ModelConfig
from sruserve.model.heads.config import HeadConfig
from sruserve.model.network import Network, network_shapes
from tests.support import random_config, random_tensors

WIDTH, FEATURES, LABELS = 10, 7, ("a", "b", "c")
LENGTHS = [1, 2, 9, 40]


class Classifier(nn.Module):
    """A recurrent module, whatever pools it, and a linear layer."""

    def __init__(self, kind: Any, pooled: int, **options: Any) -> None:
        super().__init__()
        self.rnn = kind(FEATURES, WIDTH, batch_first=True, **options)
        self.fc = nn.Linear(pooled, len(LABELS))

    def pool(self, out: Tensor, h_n: Tensor, c_n: Tensor) -> Tensor:
        """Pool outputs (batch, steps, n) and end states (layers * directions, batch, n)."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        out, end = self.rnn(x)
        h_n, c_n = end if isinstance(end, tuple) else (end, end)
        return cast("Tensor", self.fc(self.pool(out, h_n, c_n)))

    def folder(self, head: dict[str, Any], **options: Any) -> Network:
        """The network of a folder with these weights; `head` also names tensors of the module."""
        model_type = type(self.rnn).__name__.lower()
        config = random_config(
            "classify",
            model_type=model_type,
            labels=LABELS,
            input_size=FEATURES,
            hidden_size=WIDTH,
            num_layers=self.rnn.num_layers,
            head=HeadConfig.model_validate(head),
            **options,
        )
        tensors = {f"rnn.{name}": tensor.detach() for name, tensor in self.rnn.named_parameters()}
        tensors |= {f"output.{n}": tensor.detach() for n, tensor in self.fc.named_parameters()}
        return Network(config, tensors | self.own(), torch.float32)

    def own(self) -> dict[str, Tensor]:
        return {}


class BothDirections(Classifier):
    """The standard form of a bidirectional classifier: the last layer's final states."""

    def pool(self, out: Tensor, h_n: Tensor, c_n: Tensor) -> Tensor:
        return torch.cat((h_n[-2], h_n[-1]), 1)


class AllLayers(Classifier):
    """The final states of all layers, side by side."""

    def pool(self, out: Tensor, h_n: Tensor, c_n: Tensor) -> Tensor:
        return h_n.transpose(0, 1).flatten(1)


class CellState(Classifier):
    """The last layer's c."""

    def pool(self, out: Tensor, h_n: Tensor, c_n: Tensor) -> Tensor:
        return c_n[-1]


class Attention(Classifier):
    """A softmax over the steps, by a small network."""

    def __init__(self, kind: Any, pooled: int, **options: Any) -> None:
        super().__init__(kind, pooled, **options)
        self.scores = nn.Sequential(nn.Linear(pooled, 6), nn.Tanh(), nn.Linear(6, 1, bias=False))

    def pool(self, out: Tensor, h_n: Tensor, c_n: Tensor) -> Tensor:
        weights: Tensor = self.scores(out).softmax(1)
        return (weights * out).sum(1)

    def own(self) -> dict[str, Tensor]:
        return {f"pool.{name}": t.detach() for name, t in self.scores.named_parameters()}


ATTENTION = [
    {"type": "linear", "size": 6},
    {"type": "activation", "function": "tanh"},
    {"type": "linear", "size": 1, "bias": False},
]
BOTH = {"num_layers": 2, "bidirectional": True}
CASES: dict[str, tuple[Callable[[], Classifier], dict[str, Any], dict[str, Any]]] = {
    "final states of a BiLSTM": (
        lambda: BothDirections(nn.LSTM, 2 * WIDTH, **BOTH),
        {"pooling": "final", "final": ["1.h"]},
        {"bidirectional": True},
    ),
    "final states of a BiGRU, all layers": (
        lambda: AllLayers(nn.GRU, 4 * WIDTH, **BOTH),
        {"pooling": "final", "final": ["0.h", "1.h"]},
        {"bidirectional": True},
    ),
    "final states of an RNN, all layers": (
        lambda: AllLayers(nn.RNN, 3 * WIDTH, num_layers=3),
        {"pooling": "final", "final": ["0.h", "1.h", "2.h"]},
        {},
    ),
    "c of an LSTM": (
        lambda: CellState(nn.LSTM, WIDTH, num_layers=2),
        {"pooling": "final", "final": ["1.c"]},
        {},
    ),
    "attention over a BiLSTM": (
        lambda: Attention(nn.LSTM, 2 * WIDTH, **BOTH),
        {"pooling": "attention", "attention": ATTENTION},
        {"bidirectional": True},
    ),
    "attention over a GRU": (
        lambda: Attention(nn.GRU, WIDTH),
        {"pooling": "attention", "attention": ATTENTION},
        {},
    ),
}
EVERY_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def networks(case: Any, seed: int = 0) -> tuple[Classifier, Network]:
    make, head, options = case
    torch.manual_seed(seed)
    module = make().eval()
    return module, module.folder(head, **options)


def packed(lengths: list[int], seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, FEATURES, generator=generator) for n in lengths]


def logits(network: Network, parts: list[Tensor], states: Tensor | None = None) -> Tensor:
    """The logits after each part's last step; without states, from zeros and to nowhere."""
    lengths = torch.tensor([len(part) for part in parts])
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
    rows = torch.arange(len(parts))
    if states is None:
        states, rows = network.layout.allocate(1), torch.full_like(rows, -1)
    batch = RaggedBatch(offsets, states, rows, rows)
    return network.logits(network.hidden(torch.cat(parts), batch, offsets[1:] - 1))


@EVERY_CASE
def test_a_folder_answers_like_the_module(case: Any) -> None:
    module, network = networks(case)
    parts = packed(LENGTHS)
    with torch.no_grad():
        expected = torch.cat([module(part[None]) for part in parts])
    torch.testing.assert_close(logits(network, parts), expected, atol=1e-5, rtol=1e-5)


@EVERY_CASE
def test_an_answer_does_not_depend_on_the_batch(case: Any) -> None:
    _, network = networks(case)
    parts = packed([5, 1, 33, 80, 2, 600, 700])
    together = logits(network, parts, network.layout.allocate(len(parts)))
    alone = [logits(network, [part], network.layout.allocate(1)) for part in parts]
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(together[:5], logits(network, parts[:5]))


@settings(max_examples=20)
@given(cuts=st.lists(st.integers(1, 49), max_size=4, unique=True))
@pytest.mark.parametrize(
    "name", ["final states of an RNN, all layers", "c of an LSTM", "attention over a GRU"]
)
def test_any_split_gives_the_bits_of_the_whole(name: str, cuts: list[int]) -> None:
    _, network = networks(CASES[name])
    (x,) = packed([50])
    whole, states = network.layout.allocate(1), network.layout.allocate(1)
    expected = logits(network, [x], whole)
    bounds = [0, *sorted(cuts), 50]
    for begin, end in pairwise(bounds):
        last = logits(network, [x[begin:end]], states)
    assert torch.equal(last, expected)
    assert torch.equal(states, whole)


def test_a_network_streams_unless_it_reads_backward() -> None:
    for name, case in CASES.items():
        _, network = networks(case)
        assert network.supports_streaming is ("Bi" not in name)


def test_layers_before_the_stack_and_before_the_scores_run_in_their_place() -> None:
    torch.manual_seed(5)
    norm, entry = nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, 8)
    rnn = nn.LSTM(8, WIDTH, batch_first=True)
    head = nn.Sequential(
        nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 20), nn.ReLU(), nn.Dropout(), nn.Linear(20, 3)
    )
    norm(torch.randn(100, FEATURES) * 3 + 1)
    modules = nn.ModuleList([norm, entry, rnn, head]).eval()
    config = random_config(
        "classify",
        model_type="lstm",
        labels=LABELS,
        input_size=8,
        hidden_size=WIDTH,
        num_layers=1,
        input_width=FEATURES,
        input_layers=[
            {"type": "scale"},
            {"type": "linear", "size": 8},
            {"type": "activation", "function": "tanh"},
        ],
        head=HeadConfig.model_validate(
            {
                "layers": [
                    {"type": "layer_norm"},
                    {"type": "linear", "size": 20},
                    {"type": "activation", "function": "relu"},
                ]
            }
        ),
    )
    assert norm.running_var is not None
    own = {
        "input_layers.0.mean": norm.running_mean,
        "input_layers.0.weight": norm.weight / (norm.running_var + norm.eps).sqrt(),
        "input_layers.0.bias": norm.bias,
        "input_layers.1.weight": entry.weight,
        "input_layers.1.bias": entry.bias,
        "head.0.weight": head[0].weight,
        "head.0.bias": head[0].bias,
        "head.1.weight": head[1].weight,
        "head.1.bias": head[1].bias,
        "output.weight": head[4].weight,
        "output.bias": head[4].bias,
    }
    own |= {f"rnn.{name}": parameter for name, parameter in rnn.named_parameters()}
    tensors = {name: cast("Tensor", tensor).detach() for name, tensor in own.items()}
    assert {n: tuple(t.shape) for n, t in tensors.items()} == network_shapes(config)
    network = Network(config, tensors, torch.float32)
    parts = packed(LENGTHS)
    with torch.no_grad():
        expected = torch.cat(
            [modules[3](rnn(entry(norm(part)).tanh()[None])[0][:, -1]) for part in parts]
        )
    torch.testing.assert_close(logits(network, parts), expected, atol=1e-5, rtol=1e-5)


def test_an_embedding_may_be_narrower_than_the_stack() -> None:
    config = random_config(
        vocab_size=30,
        input_size=16,
        input_width=5,
        input_layers=[{"type": "linear", "size": 16}],
        head=HeadConfig.model_validate({"layers": [{"type": "linear", "size": 5}], "tied": True}),
    )
    tensors = random_tensors(config)
    network = Network(config, tensors, torch.float32)
    entry = tensors["embedding.weight"] @ tensors["input_layers.0.weight"].T
    entry = entry + tensors["input_layers.0.bias"]
    plain = random_config(vocab_size=30, input_size=16)
    same = {**tensors, "embedding.weight": entry, "output.weight": torch.zeros(30, 24)}
    same["output.bias"] = tensors["output.bias"]
    bare = Network(plain, {k: same[k] for k in network_shapes(plain)}, torch.float32)
    ids = torch.randint(0, 30, (20,))
    nowhere = torch.tensor([-1])
    batch = RaggedBatch(torch.tensor([0, 20]), network.layout.allocate(1), nowhere, nowhere)
    hidden = network.hidden(ids, batch)
    torch.testing.assert_close(hidden, bare.hidden(ids, batch), atol=1e-5, rtol=1e-5)
    narrow = hidden @ tensors["head.0.weight"].T + tensors["head.0.bias"]
    expected = narrow @ tensors["embedding.weight"].T + tensors["output.bias"]
    torch.testing.assert_close(network.logits(hidden), expected, atol=1e-4, rtol=1e-4)
    assert network.decoder(network.layout.allocate(1)) is None


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ({"pooling": "final"}, "pooling final and the list"),
        ({"final": ["1.h"]}, "pooling final and the list"),
        ({"pooling": "final", "final": ["2.h"]}, "no entry 2.h; it has 0.c, 1.c"),
        ({"pooling": "attention", "attention": [{"type": "linear", "size": 2}]}, "not 2"),
        ({"layers": [{"type": "select", "ranges": [[0, 99]]}]}, "no range of 24 columns"),
        ({"output_layers": [{"type": "scale"}]}, "for task regress only"),
    ],
    ids=str,
)
def test_a_head_that_does_not_fit_the_stack_is_refused(head: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        random_config("classify", labels=LABELS, head=HeadConfig.model_validate(head))


def test_input_layers_that_do_not_fit_the_stack_are_refused() -> None:
    with pytest.raises(ValueError, match="width of 5 into 4, but the stack's input_size is 16"):
        random_config(vocab_size=9, input_width=5, input_layers=[{"type": "linear", "size": 4}])
    with pytest.raises(ValueError, match="input_layers turn a width of 5 into 5"):
        random_config(vocab_size=9, input_width=5)


def test_one_label_needs_another_activation_than_softmax() -> None:
    with pytest.raises(ValueError, match="name both labels of a binary logit, or set activation"):
        random_config("classify", labels=("spam",))
    head = HeadConfig(activation="sigmoid")
    assert random_config("classify", labels=("spam",), head=head).outputs == 1


def test_only_tasks_with_labels_have_an_activation() -> None:
    with pytest.raises(ValueError, match="activation is for tasks with labels, not for task gen"):
        random_config(vocab_size=9, head=HeadConfig(activation="none"))


def test_digests_tell_layers_apart() -> None:
    def digest(*layers: dict[str, Any]) -> ModelConfig:
        return random_config(
            "classify", labels=LABELS, head=HeadConfig.model_validate({"layers": layers})
        )

    from sruserve.model.folder_files import model_digest

    kinds = [{"type": "activation", "function": name} for name in ("relu", "tanh")]
    digests = {model_digest(digest(kind), {}, {}) for kind in kinds}
    digests |= {model_digest(digest(), {}, {})}
    norms = [digest({"type": "layer_norm"}), digest({"type": "scale"})]
    assert len(digests | {model_digest(norm, {}, {}) for norm in norms}) == 5
