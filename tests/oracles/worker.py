"""Runs in a process of its own, with one release of `sru` to import: makes modules, runs them.

The releases compile C++ when they are imported, and have the same in Python for where that fails.
Here it always does: their Python takes no minute to start, and is what their tests compare with.
"""

import io
import struct
import sys
import warnings
from typing import IO, Any

import torch
import torch.utils.cpp_extension

_LENGTH = struct.Struct("<Q")


def read(pipe: IO[bytes]) -> Any:
    """The next message, or None at the end."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    data = io.BytesIO(pipe.read(_LENGTH.unpack(head)[0]))
    return torch.load(data, weights_only=True)


def write(pipe: IO[bytes], message: Any) -> None:
    data = io.BytesIO()
    torch.save(message, data)
    pipe.write(_LENGTH.pack(data.tell()) + data.getvalue())
    pipe.flush()


def without_compiling(release: str) -> None:
    """Make the release use its own fallback instead of compiling."""

    def load(**_: Any) -> None:
        if release < "2.4":
            raise RuntimeError("nothing is compiled here")

    torch.utils.cpp_extension.load = load  # type: ignore[assignment]
    torch.jit.script = lambda function: function  # type: ignore[assignment]


def run(library: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Make a module with random weights, or with those given, and run it.

    Returns its state_dict and, for every call in turn, h and the end state.
    """
    torch.manual_seed(request["seed"])
    module = getattr(library, request["class"])(**request["options"]).eval()
    for name, parameter in module.named_parameters():
        if name.endswith(("weight_c", "bias", ".a", ".b", "layer_norm.weight", "gain", "alpha")):
            torch.nn.init.normal_(parameter, 0.5, 0.4)  # as made, zeros or ones would hide mistakes
    result: dict[str, Any] = {"state_dict": dict(module.state_dict()), "calls": []}
    for call in request["calls"]:
        outputs = module(*call["arguments"], **call["keywords"])
        result["calls"].append([o.detach() if torch.is_tensor(o) else None for o in outputs])
    return result


def main() -> None:
    release = sys.argv[1]
    pipe, sys.stdout = sys.stdout.buffer, sys.stderr
    without_compiling(release)
    warnings.simplefilter("ignore")
    import sru

    write(pipe, {"ready": True})
    while (request := read(sys.stdin.buffer)) is not None:
        try:
            answer = run(sru, request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        write(pipe, answer)


if __name__ == "__main__":
    main()
