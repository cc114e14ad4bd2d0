"""Checkpoints of torch.nn.LSTM, GRU and RNN: names and shapes determine all but one option."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.torch_rnn import read, recognises
from tests.model.importers.running import agree, hidden, imported, log_probs, refused

KINDS: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
FORMAT = ("--format", "torch")


class Reader(nn.Module):
    """A network in the names that a user chose."""

    def __init__(self, names: tuple[str, str, str], vocabulary: int, outputs: int, tied: bool):
        super().__init__()
        torch.manual_seed(3)
        embedding, rnn, output = names
        self.names = names
        self.add_module(embedding, nn.Embedding(vocabulary, 12))
        self.add_module(rnn, nn.GRU(12, 12, 2, batch_first=True))
        self.add_module(output, nn.Linear(12, outputs, bias=not tied))
        if tied:
            self.get_submodule(output).weight = self.get_submodule(embedding).weight

    def forward(self, tokens: Tensor) -> Tensor:
        embedding, rnn, output = map(self.get_submodule, self.names)
        scores: Tensor = output(rnn(embedding(tokens)[None])[0][0])
        return scores


NAMES = [("embedding", "rnn", "fc"), ("encoder", "rnn", "decoder"), ("word_emb", "lstm", "proj")]


@st.composite
def modules(draw: st.DrawFn) -> tuple[nn.RNNBase, dict[str, Any]]:
    """A module, and the options that it needs."""
    kind = draw(st.sampled_from(list(KINDS)))
    width = draw(st.integers(2, 20))
    options: dict[str, Any] = {
        "num_layers": draw(st.integers(1, 3)),
        "bidirectional": draw(st.booleans()),
        "bias": draw(st.booleans()),
    }
    if kind == "lstm" and draw(st.booleans()):
        options["proj_size"] = draw(st.integers(1, width - 1))
    untold = {"nonlinearity": draw(st.sampled_from(["tanh", "relu"]))} if kind == "rnn" else {}
    return KINDS[kind](draw(st.integers(1, 20)), width, **options, **untold), untold


@settings(max_examples=50)
@given(drawn=modules(), prefix=st.sampled_from(["", "lstm.", "encoder.rnn."]))
def test_names_and_shapes_tell_all_but_a_nonlinearity(
    drawn: tuple[nn.RNNBase, dict[str, Any]], prefix: str
) -> None:
    module, untold = drawn
    tensors = {f"{prefix}{name}": t.detach() for name, t in module.state_dict().items()}
    assert recognises(tensors.keys())
    imported = read(tensors, untold or None, "encode")
    assert imported.rnn.family == type(module).__name__.lower()
    for name in ("input_size", "hidden_size", "num_layers", "bidirectional", "bias"):
        assert getattr(imported.rnn, name) == getattr(module, name)
    assert getattr(imported.rnn, "proj_size", 0) == module.proj_size
    assert {k.removeprefix("rnn."): tuple(t.shape) for k, t in imported.tensors.items()} == (
        imported.rnn.shapes()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_bare_module_becomes_an_encoder(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(1)
    module = KINDS[kind](7, 10, 2)
    options = {"options": {"nonlinearity": "tanh", "dropout": 0.3}} if kind == "rnn" else {}
    model = imported(tmp_path, dict(module.state_dict()), "encode", *FORMAT, **options)
    x = torch.randn(9, 7)
    with torch.inference_mode():
        agree(hidden(model, x), module(x)[0])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("names", NAMES, ids="-".join)
def test_a_language_model_may_have_any_names(
    tmp_path: Path, names: tuple[str, str, str], tied: bool
) -> None:
    theirs = Reader(names, 30, 30, tied)
    model = imported(tmp_path, dict(theirs.state_dict()), "generate", *FORMAT)
    assert model.config.head.tied is tied
    tokens = torch.randint(0, 30, (8,))
    with torch.inference_mode():
        agree(log_probs(model, tokens), torch.log_softmax(theirs(tokens), -1))


def test_a_classifier_reads_features_or_ids(tmp_path: Path) -> None:
    theirs = Reader(NAMES[0], 30, 3, False)
    for name in ("ids", "features"):
        (tmp_path / name).mkdir()
    model = imported(tmp_path / "ids", dict(theirs.state_dict()), "classify", *FORMAT)
    assert (model.config.vocab_size, len(model.config.labels)) == (30, 3)
    features = {k: t for k, t in theirs.state_dict().items() if "embedding" not in k}
    model = imported(tmp_path / "features", features, "classify", *FORMAT)
    assert (model.config.vocab_size, len(model.config.labels)) == (None, 3)


class FinalStates(nn.Module):
    """A bidirectional classifier in its standard form."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], layers: int) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.rnn = kind(6, 5, 2, batch_first=True, bidirectional=True)
        self.layers = layers
        self.fc = nn.Linear(2 * 5 * layers, 3)

    def forward(self, x: Tensor) -> Tensor:
        end = self.rnn(x)[1]
        h_n = end[0] if isinstance(end, tuple) else end
        scores: Tensor = self.fc(h_n[-2 * self.layers :].transpose(0, 1).flatten(1))
        return scores


@pytest.mark.parametrize("layers", [1, 2], ids=["last layer", "all layers"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_head_reads_the_final_states_of_both_directions(
    tmp_path: Path, kind: type[nn.LSTM | nn.GRU], layers: int
) -> None:
    theirs = FinalStates(kind, layers)
    options = {"options": {"pooling": "final"}}
    model = imported(tmp_path, dict(theirs.state_dict()), "classify", *FORMAT, **options)
    for steps in (1, 2, 30):
        x = torch.randn(steps, 6)
        ours = model.network.logits(hidden(model, x)[-1:])
        with torch.inference_mode():
            agree(ours, theirs(x[None]))


class ConcatPooling(FinalStates):
    """The final states, the maximum and the mean, side by side."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__(kind, 1)
        self.fc = nn.Linear(3 * self.fc.in_features, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, end = self.rnn(x)
        h_n = end[0] if isinstance(end, tuple) else end
        ends = h_n[-2:].transpose(0, 1).flatten(1)
        scores: Tensor = self.fc(torch.cat([ends, out.amax(1), out.mean(1)], 1))
        return scores


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_head_reads_several_poolings(tmp_path: Path, kind: type[nn.LSTM | nn.GRU]) -> None:
    theirs = ConcatPooling(kind)
    options = {"options": {"pooling": ["final", "max", "mean"]}}
    model = imported(tmp_path, dict(theirs.state_dict()), "classify", *FORMAT, **options)
    x = torch.randn(9, 6)
    ours = model.network.logits(hidden(model, x)[-1:])
    with torch.inference_mode():
        agree(ours, theirs(x[None]))
    wrong = {"pooling": ["max", "mean"]}
    other = tmp_path / "other"
    other.mkdir()
    message = refused(other, dict(theirs.state_dict()), "classify", *FORMAT, options=wrong)
    assert "but pooling max and mean gives" in message


def test_a_bidirectional_classifier_without_a_pooling_is_refused(tmp_path: Path) -> None:
    message = refused(tmp_path, dict(FinalStates(nn.LSTM, 1).state_dict()), "classify", *FORMAT)
    assert '"pooling" in --options: "final" if the head reads the final states of both' in message


def test_an_activation_is_an_option_of_the_head(tmp_path: Path) -> None:
    theirs = dict(Reader(NAMES[0], 30, 3, False).state_dict())
    options = {"options": {"activation": "sigmoid", "pooling": "mean"}}
    model = imported(tmp_path, theirs, "classify", *FORMAT, **options)
    assert (model.config.head.activation, model.config.head.pooling) == ("sigmoid", "mean")


LSTM = dict(nn.LSTM(3, 4).state_dict())
RNN = dict(nn.RNN(3, 4).state_dict())


def test_an_option_that_weights_do_not_show_is_requested_by_name(tmp_path: Path) -> None:
    assert '"nonlinearity" is not stored' in refused(tmp_path, RNN, "encode", *FORMAT)


@pytest.mark.parametrize(
    ("tensors", "options", "message"),
    [
        (LSTM, {"hidden_size": 5}, "hidden_size is 5; the weights say 4"),
        (LSTM, {"bidirectional": True}, "bidirectional is True; the weights say False"),
        (LSTM, {"nonlinearity": "relu"}, "nonlinearity is unknown"),
        (RNN, {"nonlinearity": "selu"}, "nonlinearity"),
        ({**LSTM, "weight_hh_l0": torch.ones(10, 4)}, {}, "an LSTM has 4 rows per column"),
        (
            {k: t for k, t in LSTM.items() if k != "bias_hh_l0"},
            {},
            "bias_hh_l0 is missing: save the whole state dict",
        ),
        ({k: t for k, t in LSTM.items() if k != "weight_ih_l0"}, {}, "weight_ih_l0 is missing"),
        ({**LSTM, "weight_ih_l2": torch.ones(16, 4)}, {}, "l1 is missing"),
        ({**LSTM, **{f"b.{k}": t for k, t in LSTM.items()}}, {}, "2 modules"),
        ({**LSTM, "fc.weight": torch.ones(2, 4)}, {}, "fc.weight is not expected"),
        ({"fc.weight": torch.ones(2, 4)}, {}, "no weight_hh_l0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused(
    tensors: dict[str, Tensor], options: dict[str, Any], message: str
) -> None:
    with pytest.raises((CheckpointError, OptionError), match=message):
        read(tensors, options, "encode")


def test_matrices_that_could_be_either_are_refused() -> None:
    around = {"a.weight": torch.ones(5, 4), "b.weight": torch.zeros(5, 4)}
    tensors = {**nn.GRU(4, 4).state_dict(), **around}
    with pytest.raises(CheckpointError, match=r"a.weight, b.weight: each could be"):
        read(tensors, None, "generate")


def test_a_square_matrix_may_be_a_layer_before_the_stack_so_it_is_no_embedding() -> None:
    tensors = {**nn.GRU(4, 6).state_dict(), "fc.weight": torch.ones(3, 6), "fc.bias": torch.ones(3)}
    with pytest.raises(CheckpointError, match=r"first.weight is not expected \(\[4, 4\]\)"):
        read({**tensors, "first.weight": torch.ones(4, 4)}, None, "classify")
    for name in "first_emb.weight", "embedding.weight":
        assert read({**tensors, name: torch.ones(4, 4)}, None, "classify").vocab_size == 4


@pytest.mark.parametrize(
    ("layers", "bidirectional", "inputs"), [(1, True, 24), (2, True, 48), (2, False, 24)]
)
def test_a_linear_layer_that_does_not_fit_the_pooling_lists_the_widths(
    tmp_path: Path, layers: int, bidirectional: bool, inputs: int
) -> None:
    stack = nn.LSTM(5, 12, layers, bidirectional=bidirectional)
    output = 12 * (2 if bidirectional else 1)
    tensors = {
        **stack.state_dict(),
        "fc.weight": torch.ones(3, inputs + 1),
        "fc.bias": torch.ones(3),
    }
    message = refused(tmp_path, tensors, "classify", *FORMAT, options={"pooling": "max"})
    assert f"the linear layer reads {inputs + 1} numbers, but pooling max gives {output}" in message
    assert f"Last, mean and max give {output}" in message
    assert f"the h of all {layers} layers {layers * output}" in message
