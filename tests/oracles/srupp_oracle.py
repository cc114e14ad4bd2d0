"""A released `sru.SRUpp` run as its experiments evaluate it; started with the wheel on PYTHONPATH.

Reads requests, a JSON object a line, and writes to the file `out` of each what came of it:
`state_dict`, input `x` (steps, batch, features), start `c_0`, output `h` and end `c_n`.
"""

import json
import sys
from typing import Any

import torch
from torch import Tensor

# The releases compile kernels on import, and their plain Python path needs none of them.
torch.utils.cpp_extension = type(sys)("torch.utils.cpp_extension")
torch.utils.cpp_extension.load = lambda **_: None  # type: ignore[attr-defined]
sys.modules["torch.utils.cpp_extension"] = torch.utils.cpp_extension
torch.jit.script = lambda function: function  # type: ignore[assignment]

from sru import SRUpp  # noqa: E402


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
    results = {"x": x, "c_0": c_0, "h": h.detach(), "c_n": c_n.detach()}
    return {"state_dict": model.state_dict(), **results}


def whole(model: SRUpp, x: Tensor, c_0: Tensor, request: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """One call, in which every step sees every other one."""
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
