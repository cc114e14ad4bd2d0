"""Make the golden cases of recurrent translation systems with the code of OpenNMT-py 2.3.0.

    pip install --no-deps --target ONMT OpenNMT-py==2.3.0
    python tests/oracles/opennmt_golden.py ONMT tests/golden/translation

The modules that matter are loaded without the packages' own `__init__`, which import much that they
never use. Every case is random weights and random sources and targets, one pair at a time.
"""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

SOURCE, TARGET = 19, 23  # ids of both sides
LENGTHS = [(7, 5), (1, 3), (12, 9)]  # of sources and targets
CASES: list[dict[str, Any]] = [
    {"name": "opennmt-lstm-general", "rnn": "LSTM", "attention": "general", "brnn": True},
    {"name": "opennmt-lstm-mlp", "rnn": "LSTM", "attention": "mlp", "layers": 1},
    {"name": "opennmt-gru-dot", "rnn": "GRU", "attention": "dot", "brnn": True, "widths": (10, 14)},
    {
        "name": "opennmt-lstm-unfed", "rnn": "LSTM", "attention": "general", "input_feed": False,
        "shared": True,
    },
    {"name": "opennmt-gru-none", "rnn": "GRU", "attention": "none", "input_feed": False},
]  # fmt: skip


def load(folder: Path) -> dict[str, Any]:
    """The classes of encoder, decoders and embeddings."""
    for name in ("onmt", *(f"onmt.{part}" for part in ("modules", "utils", "models"))):
        package = ModuleType(name)
        package.__path__ = [str(folder / name.replace(".", "/"))]
        sys.modules[name] = package
    for name in ("encoders", "decoders"):
        package = ModuleType(f"onmt.{name}")
        package.__path__ = [str(folder / "onmt" / name)]
        sys.modules[f"onmt.{name}"] = package
    logging = ModuleType("onmt.utils.logging")
    logging.logger = None  # type: ignore[attr-defined]
    sys.modules["onmt.utils.logging"] = logging
    attention = importlib.import_module("onmt.modules.global_attention")
    modules = sys.modules["onmt.modules"]
    modules.GlobalAttention = attention.GlobalAttention  # type: ignore[attr-defined]
    modules.context_gate_factory = None  # type: ignore[attr-defined]
    decoders = importlib.import_module("onmt.decoders.decoder")
    return {
        "encoder": importlib.import_module("onmt.encoders.rnn_encoder").RNNEncoder,
        "fed": decoders.InputFeedRNNDecoder,
        "unfed": decoders.StdRNNDecoder,
    }


class Embeddings(nn.Module):
    """A table under the names of the library's embeddings, which need their options parsed."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.make_embedding = nn.Sequential()
        self.make_embedding.add_module("emb_luts", nn.ModuleList([nn.Embedding(size, width)]))
        self.embedding_size = width

    def forward(self, ids: Tensor) -> Tensor:
        """Look up ids (steps, batch, 1)."""
        table: Any = self.make_embedding.emb_luts
        rows: Tensor = table[0](ids[:, :, 0])
        return rows


def make(case: dict[str, Any], classes: dict[str, Any], out: Path) -> None:
    """Run one case, and write its files."""
    layers, hidden, both = case.get("layers", 2), 16, case.get("brnn", False)
    widths = case.get("widths", (12, 12))
    sizes = (TARGET, TARGET) if case.get("shared") else (SOURCE, TARGET)
    source_table = Embeddings(sizes[0], widths[0])
    target_table = source_table if case.get("shared") else Embeddings(sizes[1], widths[1])
    encoder = classes["encoder"](case["rnn"], both, layers, hidden, 0.0, source_table)
    decoder = classes["fed" if case.get("input_feed", True) else "unfed"](
        case["rnn"], both, layers, hidden, case["attention"], embeddings=target_table
    )
    generator = nn.Sequential(nn.Linear(hidden, sizes[1]), nn.LogSoftmax(-1))
    modules = nn.ModuleDict({"encoder": encoder, "decoder": decoder, "generator": generator}).eval()
    for parameter in modules.parameters():
        nn.init.normal_(parameter, 0, 0.4)
    results: dict[str, Tensor] = {}
    for number, (source_length, target_length) in enumerate(LENGTHS):
        source = torch.randint(2, sizes[0], (source_length,))
        target = torch.randint(2, sizes[1], (target_length,))
        lengths = torch.tensor([source_length])
        final, memory, _ = encoder(source[:, None, None], lengths)
        decoder.init_state(source[:, None, None], memory, final)
        outputs, attention = decoder(target[:, None, None], memory, memory_lengths=lengths)
        results |= {
            f"{number}.source": source, f"{number}.target": target,
            f"{number}.log_probs": generator(outputs[:, 0]),
        }  # fmt: skip
        if "std" in attention:
            results[f"{number}.attention"] = attention["std"][:, 0]
    folder = out / case["name"]
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({k: v.clone() for k, v in modules.state_dict().items()}, folder / "weights.pt")
    save_file({k: v.detach().contiguous() for k, v in results.items()}, folder / "io.safetensors")
    described = {
        "library": "OpenNMT-py 2.3.0",
        "options": {
            "source": {"unk": 0, "pad": 1},
            "target": {"unk": 0, "pad": 1, "bos": 2, "eos": 3},
        },
    }
    (folder / "case.json").write_text(json.dumps(described, indent=1) + "\n")


def main() -> None:
    """Write every case."""
    torch.set_num_threads(1)
    classes = load(Path(sys.argv[1]))
    for seed, case in enumerate(CASES):
        torch.manual_seed(seed)
        with torch.no_grad():
            make(case, classes, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
