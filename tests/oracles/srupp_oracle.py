"""A released `sru.SRUpp` run as its experiments evaluate it; started with the wheel on PYTHONPATH.

Reads requests, a JSON object a line, and writes to the file `out` of each what came of it:
`state_dict`, input `x` (steps, batch, features), start `c_0`, output `h` and end `c_n`.
In float64, the same weights and inputs give `exact_h` and `exact_c_n`; others, as far away as
float32 may round them, move these by `moved_h` and `moved_c_n`, the most of a few trials.
"""

import json
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

# The releases compile kernels on import, and their plain Python path needs none of them.
compiler = ModuleType("torch.utils.cpp_extension")
compiler.load = lambda **_: None  # type: ignore[attr-defined]
sys.modules[compiler.__name__] = compiler
torch.jit.script = lambda function: function  # type: ignore[assignment]
warnings.simplefilter("ignore")  # of the releases, about themselves

from sru import SRUpp  # noqa: E402

Run = Callable[[SRUpp, Tensor, Tensor, dict[str, Any]], tuple[Tensor, Tensor]]


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        torch.save(answer(request), request["out"])
        print("done", flush=True)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Make a model with random weights and run random inputs through it."""
    torch.manual_seed(request["seed"])
    model = SRUpp(**request["options"]).eval()
    for tensor in model.parameters():
        if tensor.dim() == 1:
            tensor.data.add_(torch.randn_like(tensor))
    lengths = request["lengths"]
    x = torch.randn(max(lengths), len(lengths), model.input_size)
    c_0 = torch.randn(model.num_layers, len(lengths), model.output_size)
    run = whole if request["window"] is None else chunked
    # With gradients: without them, it would run its compiled kernels.
    h, c_n = run(model, x, c_0, request)
    results: dict[str, Any] = {"x": x, "c_0": c_0, "h": h.detach(), "c_n": c_n.detach()}
    results |= {"state_dict": {name: tensor.clone() for name, tensor in model.state_dict().items()}}
    return results | in_float64(model.double(), run, x.double(), c_0.double(), request)


def in_float64(
    model: SRUpp, run: Run, x: Tensor, c_0: Tensor, request: dict[str, Any]
) -> dict[str, Tensor]:
    """The exact results, and how far they move."""
    h, c_n = run(model, x, c_0, request)
    moved_h, moved_c_n = torch.zeros_like(h), torch.zeros_like(c_n)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for _ in range(4):
        model.load_state_dict({name: rounded(tensor) for name, tensor in weights.items()})
        other_h, other_c_n = run(model, rounded(x), rounded(c_0), request)
        moved_h = torch.maximum(moved_h, (other_h - h).abs())
        moved_c_n = torch.maximum(moved_c_n, (other_c_n - c_n).abs())
    exact = {"exact_h": h, "exact_c_n": c_n, "moved_h": moved_h, "moved_c_n": moved_c_n}
    return {name: tensor.detach() for name, tensor in exact.items()}


def rounded(exact: Tensor) -> Tensor:
    """Numbers as far away as float32 may round them."""
    return exact * (1 + (2 * torch.rand_like(exact) - 1) * 2**-24)


def whole(model: SRUpp, x: Tensor, c_0: Tensor, request: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """One call, in which every step sees all others."""
    steps = torch.arange(len(x))[:, None]
    h, c_n, _ = model(x, c_0, mask_pad=steps >= torch.tensor(request["lengths"]))
    return h, c_n


def chunked(model: SRUpp, x: Tensor, c: Tensor, request: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Calls of `window` steps, each with the memory of the one before."""
    window, memory, parts = request["window"], None, []
    for chunk in torch.split(x, window):
        before = 0 if memory is None else len(memory[0])
        age = torch.arange(before, before + len(chunk))[:, None] - torch.arange(before + len(chunk))
        mask = ((age < 0) | (age > window)) * -10000.0
        h, c, bank = model(chunk, c, attn_mask=mask, memory=memory)
        memory = bank["saved_inputs"]
        parts.append(h)
    return torch.cat(parts), c


if __name__ == "__main__":
    main()
