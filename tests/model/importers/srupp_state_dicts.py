"""State dicts of SRU++ as the library saves them."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typer.testing import CliRunner, Result

from sruserve.cli import app
from sruserve.model.cells.srupp import SRUppConfig


def stack(**options: Any) -> SRUppConfig:
    plain = {"input_size": 6, "hidden_size": 8, "proj_size": 4, "num_layers": 3, "window": 5}
    return SRUppConfig.model_validate({**plain, **options})


def state_dict(rnn: SRUppConfig, prefix: str = "") -> dict[str, Tensor]:
    """Random tensors, as the library saves them."""
    generator = torch.Generator().manual_seed(3)
    return {
        prefix + name: torch.ones(1)
        if name.endswith("scale_x")
        else torch.randn(shape, generator=generator) / shape[-1] ** 0.5
        for name, shape in rnn.shapes().items()
    }


def command(tmp_path: Path, tensors: dict[str, Tensor], task: str, **options: Any) -> Result:
    torch.save(tensors, tmp_path / "weights.pt")
    (tmp_path / "options.json").write_text(json.dumps(options))
    files = [str(tmp_path / "weights.pt"), str(tmp_path / "model")]
    arguments = ["--task", task, "--options", str(tmp_path / "options.json")]
    return CliRunner().invoke(app, ["import", *files, "--format", "srupp", *arguments])


PLAIN = {"num_heads": 2, "window": 5, "bidirectional": False}


def experiment(rnn: SRUppConfig, shared: bool) -> dict[str, Tensor]:
    """The state dict of a language model on 23 words with cutoffs 5 and 12."""
    generator = torch.Generator().manual_seed(7)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    tensors = state_dict(rnn, "rnn.")
    for i, (rows, width) in enumerate([(5 + 2, 8), (7, 4), (11, 2)]):
        tensors[f"output_layer.out_layers.{i}.weight"] = random(rows, width)
        tensors[f"output_layer.out_layers.{i}.bias"] = random(rows)
        projection = tensors[f"output_layer.out_projs.{i}"] = random(8, width)
        own = projection if shared else random(8, width)
        tensors[f"embedding_layer.emb_projs.{i}"] = own
    return tensors
