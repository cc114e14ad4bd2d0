"""Cells and the language model of the LRN repository."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.model.importers.formulas import lrn_repository_cell, random
from tests.model.importers.running import agree, hidden, imported, log_probs, refused

KINDS = ["lrn", "atr", "sru", "lstm", "gru"]
STEPS = 7


def cell(kind: str, inputs: int, width: int, seed: int) -> dict[str, Tensor]:
    """Names and shapes of its lm/code/rnn.py."""
    joined = inputs + width
    shapes: dict[str, tuple[int, ...]] = {
        "lrn": {"_W": (inputs, 3 * width), "_W_b": (3 * width,)},
        "atr": {
            "_W": (inputs, width),
            "_W_b": (width,),
            "_U": (width, width),
            "_U_b": (width,),
        },
        "sru": {
            "_W": (inputs, 4 * width),
            "_W_b": (4 * width,),
            "_Vr": (width,),
            "_Vf": (width,),
        },
        "lstm": {"_W": (joined, 4 * width), "_b": (4 * width,)},
        "gru": {
            "_W": (joined, 2 * width),
            "_W_b": (2 * width,),
            "_U": (joined, width),
            "_U_b": (width,),
        },
    }[kind]
    return {name: random(*shape, seed=seed + i) for i, (name, shape) in enumerate(shapes.items())}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(5, 8, 8), (8, 8, 8), (6, 1)], ids=str)
def test_a_bare_stack_gives_the_cells_step_by_step(
    tmp_path: Path, kind: str, sizes: tuple[int, ...]
) -> None:
    cells = [cell(kind, sizes[i], sizes[i + 1], 10 * i) for i in range(len(sizes) - 1)]
    tensors = {f"cell_{i}.{name}": t for i, own in enumerate(cells) for name, t in own.items()}
    options = {"cell_type": kind, "input_size": sizes[0], "hidden_size": sizes[1]}
    model = imported(tmp_path, tensors, "encode", options=options)
    x = expected = random(STEPS, sizes[0], seed=99)
    for own in cells:
        expected = lrn_repository_cell(kind, own, expected)
    agree(hidden(model, x), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dropped", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_its_language_model_is_a_mixture_of_softmaxes(
    tmp_path: Path, kind: str, dropped: bool, tied: bool
) -> None:
    words, size, experts = 13, 6, 3
    widths = (size, 8, 8) if kind == "sru" else (size, 8, 5)  # nhidlast may differ from nhid
    last = widths[-1]
    cells = [cell(kind, widths[i], widths[i + 1], 10 * i) for i in range(2)]
    table = random(words, size, seed=40)
    model_tensors = {
        "encoder.weight": table,
        "prior.weight": random(experts, last, seed=41),
        "latent.0.weight": random(experts * size, last, seed=42, spread=0.5),
        "latent.0.bias": random(experts * size, seed=43),
        "decoder.weight": table if tied else random(words, size, seed=44),
        "decoder.bias": random(words, seed=45),
    }
    for i, own in enumerate(cells):
        module = "module." if dropped else ""
        model_tensors |= {f"rnns.{i}.{module}cell_0.{name}": t for name, t in own.items()}
    model = imported(tmp_path, model_tensors, "generate")
    assert model.config.head.tied == tied
    tokens = torch.tensor([3, 1, 12, 0, 7, 7, 2])
    h = table[tokens]
    for own in cells:
        h = lrn_repository_cell(kind, own, h)
    prior = (h @ model_tensors["prior.weight"].T).softmax(-1)
    latent = (h @ model_tensors["latent.0.weight"].T + model_tensors["latent.0.bias"]).tanh()
    latent = latent.view(len(tokens), experts, size)
    each = (latent @ model_tensors["decoder.weight"].T + model_tensors["decoder.bias"]).softmax(-1)
    agree(log_probs(model, tokens), ((prior[..., None] * each).sum(1) + 1e-8).log())


@pytest.mark.parametrize("kind", ["lrn", "atr"])
def test_the_tanh_can_be_left_out(tmp_path: Path, kind: str) -> None:
    own = {f"cell_0.{name}": t for name, t in cell(kind, 4, 4, 0).items()}
    model = imported(tmp_path, own, "encode", options={"activation": "identity"})
    x = random(1, 4, seed=7)
    weight, bias = own["cell_0._W"], own["cell_0._W_b"]
    if kind == "lrn":
        p, _, r = (x @ weight + bias).chunk(3, 1)
        expected = p.sigmoid() * r
    else:
        p = x @ weight + bias
        expected = (p + own["cell_0._U_b"]).sigmoid() * p
    agree(hidden(model, x), expected)


def test_an_output_gate_is_a_fourth_block(tmp_path: Path) -> None:
    weight, bias = random(4, 16, seed=1), random(16, seed=2)
    tensors = {"cell_0._W": weight, "cell_0._W_b": bias}
    model = imported(tmp_path, tensors, "encode", options={"output_gate": True})
    x, h, expected = random(5, 4, seed=7), torch.zeros(4), []
    for step in x:
        p, q, r, o = (step @ weight + bias).chunk(4)
        c = ((p + h).sigmoid() * r + (q - h).sigmoid() * h).tanh()
        h = (o - c).sigmoid() * c
        expected.append(h)
    agree(hidden(model, x), torch.stack(expected))


def bare(kind: str) -> dict[str, Tensor]:
    return {f"cell_0.{name}": t for name, t in cell(kind, 4, 4, 0).items()}


@pytest.mark.parametrize(
    ("tensors", "options", "message"),
    [
        (bare("lrn"), {"cell_type": "sru"}, "cell_type is sru; the weights say lrn"),
        (bare("lrn"), {"hidden_size": 5}, "hidden_size is 5; the weights say 4"),
        (bare("lrn"), {"num_layers": 2}, "num_layers is 2; the weights say 1"),
        (bare("lrn"), {"nlayers": 3}, "nlayers is 3; the weights say 1"),
        (bare("sru"), {"activation": "identity"}, "activation is unknown"),
        (bare("lrn"), {"activation": "sine"}, "activation"),
        ({**bare("lrn"), "cell_0._Q": torch.ones(2)}, {}, "_Q is not expected"),
        ({**bare("gru"), "cell_0._U": torch.ones(2, 4)}, {}, "_U has shape"),
        ({**bare("atr"), "cell_0._U_b": torch.ones(3)}, {}, "_U_b has shape"),
        ({**bare("lstm"), "cell_0._W": torch.ones(2)}, {}, "_W has shape"),
        ({**bare("lstm"), "cell_0._W": torch.ones(3, 16)}, {}, "input_size"),
        ({**bare("lrn"), "cell_2._W": torch.ones(4, 12)}, {}, "without gaps"),
        ({**bare("lrn"), "cell_1._b": torch.ones(4)}, {}, "layers of 2 kinds"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, tensors: dict[str, Tensor], options: dict[str, Any], message: str
) -> None:
    assert message in refused(tmp_path, tensors, "encode", options=options)
