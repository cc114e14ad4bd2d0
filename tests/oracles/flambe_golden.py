"""Make the golden cases of Transformer + SRU with the released code of `flambe` 0.4.18.

    pip install --no-deps --target FLAMBE flambe==0.4.18
    pip install --no-deps --target SRU sru==2.6.0
    PYTHONPATH=SRU python tests/oracles/flambe_golden.py FLAMBE tests/golden/translation

The two modules that matter are loaded alone: the package itself imports much that they never use.
Every case is random weights and random sources and targets, one pair at a time.
"""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.utils.cpp_extension
from safetensors.torch import save_file
from torch import Tensor, nn

SOURCE, TARGET, D, INNER = 19, 23, 16, 20  # ids of both sides, d_model, dim_feedforward
LENGTHS = [(7, 5), (1, 3), (12, 9)]  # of sources and targets
CASES: list[dict[str, Any]] = [
    {"name": "flambe-plain"},
    {"name": "flambe-projected", "input_size": 12, "learned": True, "nhead": 4},
    {"name": "flambe-bidirectional", "bidirectional": True, "positions": False},
    {"name": "flambe-started", "started": True, "computed": True},
    {
        "name": "flambe-sru-options",
        "sru": {"use_tanh": True, "layer_norm": True, "n_proj": 6},
        "num_layers": 3,
    },
]


def load(folder: Path) -> tuple[ModuleType, ModuleType]:
    """The modules of embeddings and of Transformer + SRU."""
    torch.utils.cpp_extension.load = lambda **_: None
    torch.jit.script = lambda function: function  # type: ignore[assignment]
    compiling, package, base = (ModuleType(f"flambe.{n}") for n in ("compile", "nn", "nn.module"))
    compiling.registrable_factory = lambda function: function  # type: ignore[attr-defined]
    package.Module = base.Module = nn.Module  # type: ignore[attr-defined]
    package.__path__ = []
    sys.modules |= {
        "flambe": ModuleType("flambe"),
        **{module.__name__: module for module in (compiling, package, base)},
    }
    loaded = []
    for name in ("embedding", "transformer_sru"):
        path = folder / "flambe" / "nn" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"flambe.nn.{name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        loaded.append(module)
    return loaded[0], loaded[1]


def make(case: dict[str, Any], embedding: ModuleType, library: ModuleType, out: Path) -> None:
    """Run one case, and write its files."""
    width, heads = case.get("input_size", D), case.get("nhead", 2)
    layers, both, sru = case.get("num_layers", 2), case.get("bidirectional", False), case.get("sru")
    encoder = library.TransformerSRUEncoder(
        width, D, heads, layers, INNER, 0.1, bidirectional=both
    ).eval()
    decoder = library.TransformerSRUDecoder(width, D, heads, layers, INNER, 0.1).eval()
    for side, kind in ((encoder, "Encoder"), (decoder, "Decoder")):
        if sru is not None:  # the layers pass them on to the cell, but the stacks do not
            layer: Callable[..., nn.Module] = getattr(library, f"TransformerSRU{kind}Layer")
            side.layers = nn.ModuleList(
                [layer(D, heads, INNER, 0.1, **sru).eval() for _ in range(layers)]
            )
    if both:  # the release gives linear2 the width of one direction, and fails
        for one in encoder.layers:
            one.linear2 = nn.Linear(2 * INNER, D)
    positions, learned = case.get("positions", True), case.get("learned", False)
    tables = [
        embedding.Embeddings(
            size, width, positional_encoding=positions, positional_learned=learned,
            positonal_max_length=20,
        )
        for size in (SOURCE, TARGET)
    ]  # fmt: skip
    output = nn.Linear(D, TARGET)
    modules = nn.ModuleDict(
        {
            "source_embedding": tables[0], "target_embedding": tables[1],
            "encoder": encoder, "decoder": decoder, "output": output,
        }
    )  # fmt: skip
    for name, parameter in modules.named_parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, 0.8 if "norm" in name and "weight" in name else 0.1, 0.3)
    results: dict[str, Tensor] = {}
    for number, (source_length, target_length) in enumerate(LENGTHS):
        source = torch.randint(1, SOURCE, (source_length,))
        target = torch.randint(1, TARGET, (target_length,))
        memory, states = encoder(tables[0](source[:, None]).transpose(0, 1))
        later = torch.full((target_length, target_length), -torch.inf).triu(1)
        started = {"state": list(states)} if case.get("started") else {}
        embedded = tables[1](target[:, None]).transpose(0, 1)
        # The decoder reads its memory with steps first, unlike all else of both.
        outputs = decoder(embedded, memory.transpose(0, 1), tgt_mask=later, **started)
        results |= {
            f"{number}.source": source, f"{number}.target": target, f"{number}.memory": memory[0],
            f"{number}.log_probs": output(outputs[0]).log_softmax(-1),
        }  # fmt: skip
    folder = out / case["name"]
    folder.mkdir(parents=True, exist_ok=True)
    state = {k: v.contiguous() for k, v in modules.state_dict().items()}
    computed = case.get("computed", False)
    if computed:  # the table of sines is made again by whoever reads the checkpoint
        state = {k: v for k, v in state.items() if "pos_embedding" not in k}
    torch.save(state, folder / "weights.pt")
    save_file({k: v.detach().contiguous() for k, v in results.items()}, folder / "io.safetensors")
    options = {"nhead": heads, "release": "2.6.0", **(sru or {})}
    if both:
        options["bidirectional"] = True
    if case.get("started"):
        options["encoder_starts_decoder"] = True
    if computed:
        options["positions"] = "sinusoidal"
    if not positions:
        options |= {"positions": "none", "max_source": 20, "max_target": 20}
    options |= {"source": {"pad": 0}, "target": {"pad": 0, "bos": 1, "eos": 2}}
    described = {"library": "flambe 0.4.18, sru 2.6.0", "options": options}
    (folder / "case.json").write_text(json.dumps(described, indent=1) + "\n")


def main() -> None:
    """Write every case."""
    torch.set_num_threads(1)
    embedding, library = load(Path(sys.argv[1]))
    for seed, case in enumerate(CASES):
        torch.manual_seed(seed)
        # With gradients: without them, sru would run its compiled kernels.
        make(case, embedding, library, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
