"""Write the models of this folder with torch.onnx, and PyTorch's answers in answers.safetensors.

Run once, where torch, onnx and onnxscript are installed: python make.py. Names that end in _new are
from the exporter of torch.export, the others from the one of TorchScript.
"""

import warnings
from pathlib import Path
from typing import Any

import onnx
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

HERE = Path(__file__).parent


class Classifier(nn.Module):
    """Ids to the scores of classes; `pooling` as people write it."""

    def __init__(self, kind: str, layers: int, bidirectional: bool, pooling: str) -> None:
        super().__init__()
        self.pooling = pooling
        self.embedding = nn.Embedding(20, 6)
        self.rnn = getattr(nn, kind)(
            6, 4, layers, batch_first=True, bidirectional=bidirectional, dropout=0.1
        )
        width = 4 * (2 if bidirectional else 1) * (layers if pooling == "all" else 1)
        self.hidden, self.norm, self.output = nn.Linear(width, 5), nn.LayerNorm(5), nn.Linear(5, 3)

    def forward(self, ids: Tensor) -> Tensor:
        y, ends = self.rnn(self.embedding(ids))
        h = ends[0] if isinstance(ends, tuple) else ends
        if self.pooling == "final":
            y = torch.cat((h[-2], h[-1]), 1)
        elif self.pooling == "swapped":
            y = torch.cat((h[-1], h[-2]), 1)
        elif self.pooling == "h":
            y = h[-1]
        elif self.pooling == "all":
            y = h.transpose(0, 1).reshape(len(ids), -1)
        elif self.pooling == "cell":
            y = ends[1][-1]
        elif self.pooling == "last":
            y = y[:, -1]
        elif self.pooling == "mean":
            y = y.mean(1)
        else:
            y = y.max(1).values
        y = self.norm(F.gelu(self.hidden(y)))
        scores: Tensor = self.output(y + torch.tanh(y))
        return scores


class Forecaster(nn.Module):
    """Features, the time first, to values at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rnn = nn.Linear(3, 6), nn.GRU(6, 4, 2)
        self.output = nn.Sequential(nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, 2))
        self.mean, self.std = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 2.0, 3.0])

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.first((x - self.mean) / self.std))
        result: Tensor = self.output(self.rnn(x)[0]) * 3.0 + 1.0
        return result


class Binary(nn.Module):
    """Features, the batch first, to the probability of one class."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.rnn = nn.BatchNorm1d(3), nn.LSTM(3, 4, batch_first=True)
        self.after, self.output = nn.BatchNorm1d(4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        y = self.after(self.rnn(x)[1][0].squeeze(0))
        return torch.sigmoid(self.output(y))


class Tagger(nn.Module):
    """Ids to log-probabilities of labels at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.rnn = nn.LSTM(6, 4, 2, batch_first=True, bidirectional=True)
        self.output = nn.Linear(8, 5)

    def forward(self, ids: Tensor) -> Tensor:
        y = self.rnn(self.embedding(ids))[0]
        y = self.output(y.reshape(-1, 8)).view(len(ids), -1, 5)
        return F.log_softmax(y, -1)


def strip(path: Path) -> None:
    """Remove the source lines that exporters note at each node."""
    model = onnx.load(str(path), load_external_data=False)
    for owner in (model, model.graph, *model.graph.node, *model.graph.value_info):
        owner.ClearField("metadata_props")
        owner.ClearField("doc_string")
    path.write_bytes(model.SerializeToString())


def export(name: str, module: nn.Module, example: Tensor, batch_axis: int = 0) -> dict[str, Any]:
    """Export a module with both exporters where they can; returns inputs and answers."""
    module.eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    for entry, buffer in module.named_buffers():
        if entry.endswith("running_var"):
            buffer.uniform_(0.5, 2)
        elif entry.endswith("running_mean"):
            buffer.normal_()
    names = {batch_axis: "batch", 1 - batch_axis: "steps"}
    torch.onnx.export(
        module, (example,), HERE / f"{name}.onnx", dynamo=False, input_names=["x"],
        output_names=["y"], dynamic_axes={"x": names},
    )  # fmt: skip
    if name in NEW:
        torch.onnx.export(
            module, (example.repeat_interleave(2, batch_axis),), HERE / f"{name}_new.onnx",
            dynamo=True, dynamic_shapes=({batch_axis: "batch", 1 - batch_axis: "steps"},),
            verbose=False, external_data=name == "final",
        )  # fmt: skip
    for path in HERE.glob(f"{name}*.onnx"):
        strip(path)
    answer = module(example)
    return {
        f"{name}.x": example.squeeze(batch_axis).clone(),
        f"{name}.y": answer.squeeze(batch_axis if answer.dim() == 3 else 0).detach().contiguous(),
    }


NEW = ("final", "mean")


def main() -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(5)
    ids, features = torch.randint(0, 20, (1, 9)), torch.randn(1, 9, 3)
    modules: dict[str, tuple[nn.Module, Tensor, int]] = {
        "final": (Classifier("LSTM", 2, True, "final"), ids, 0),
        "swapped": (Classifier("GRU", 1, True, "swapped"), ids, 0),
        "h": (Classifier("GRU", 2, False, "h"), ids, 0),
        "all": (Classifier("LSTM", 2, True, "all"), ids, 0),
        "cell": (Classifier("LSTM", 2, False, "cell"), ids, 0),
        "last": (Classifier("LSTM", 2, True, "last"), ids, 0),
        "mean": (Classifier("GRU", 1, True, "mean"), ids, 0),
        "max": (Classifier("RNN", 2, True, "max"), ids, 0),
        "forecaster": (Forecaster(), features.transpose(0, 1), 1),
        "binary": (Binary(), features, 0),
        "tagger": (Tagger(), ids, 0),
    }
    answers: dict[str, Tensor] = {}
    for name, (module, example, axis) in modules.items():
        answers |= export(name, module, example.contiguous(), axis)
    save_file(answers, HERE / "answers.safetensors")


if __name__ == "__main__":
    main()
