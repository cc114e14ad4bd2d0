"""Small random models for tests."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sruserve.model.cells import FAMILIES
from sruserve.model.config import ModelConfig, architecture
from sruserve.model.embeddings import EmbeddingConfig
from sruserve.model.folder import Model, load_model, save_model
from sruserve.model.heads.config import HeadConfig
from sruserve.model.heads.regression import Regression
from sruserve.model.names import Task
from sruserve.model.network import network_shapes
from sruserve.model.reader.config import ReaderConfig

CPU = torch.device("cpu")
PRINTABLE = list(range(32, 127))


def random_tensors(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """Random weights with which gates and states vary, for every tensor of a network."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in network_shapes(config).items():
        spread = 1.0 if len(shape) < 2 else 1.5 / shape[-1 if "output" in name else 0] ** 0.5
        tensors[name] = torch.randn(shape, generator=generator) * spread
        if name.endswith("scale_x"):
            tensors[name] = torch.tensor([1.25])
    return tensors


def random_config(
    task: Task = "generate",
    *,
    model_type: str = "sru",
    vocab_size: int | None = None,
    labels: tuple[str, ...] = (),
    head: HeadConfig | None = None,
    embedding: EmbeddingConfig | None = None,
    input_width: int | None = None,
    input_layers: Sequence[Any] = (),
    regression: Regression | None = None,
    reader: ReaderConfig | None = None,
    **rnn: Any,
) -> ModelConfig:
    """A network of a family; `rnn`: its options; two layers, 24 wide, by default."""
    stack = FAMILIES[model_type].model_validate({"input_size": 16, "hidden_size": 24, **rnn})
    return ModelConfig(
        architectures=(architecture(stack, task),),
        model_type=model_type,
        task=task,
        dtype="float32",
        vocab_size=vocab_size,
        id2label=dict(enumerate(labels)),
        input_width=input_width,
        input_layers=tuple(input_layers),
        rnn=stack,
        embedding=embedding or EmbeddingConfig(),
        head=head or HeadConfig(),
        regression=regression,
        reader=reader,
    )


def save_random_model(
    folder: Path,
    task: Task = "generate",
    *,
    vocabulary: list[int] | bytes | None = None,
    vocab_size: int | None = None,
    seed: int = 0,
    **config: Any,
) -> Path:
    """Write a model folder with random weights.

    vocabulary: byte values, or the content of a tokenizer.json; `vocab_size` alone: ids only.
    config: the other arguments of `random_config`.
    """
    files = {}
    if isinstance(vocabulary, list):
        vocab_size, files = len(vocabulary), {"bytes.json": json.dumps(vocabulary).encode()}
    elif vocabulary is not None:
        files = {"tokenizer.json": vocabulary}
    described = random_config(task, vocab_size=vocab_size, **config)
    save_model(folder, described, random_tensors(described, seed), files)
    return folder


def random_model(
    folder: Path,
    task: Task = "generate",
    dtype: str = "float32",
    device: torch.device = CPU,
    fast: bool = False,
    **kw: Any,
) -> Model:
    """A loaded model with random weights; a language model of printable characters by default."""
    if task == "generate" and not {"vocabulary", "vocab_size"} & set(kw):
        kw["vocabulary"] = PRINTABLE
    if task in ("classify", "pair"):
        kw.setdefault("labels", ("yes", "no", "maybe"))
    if task == "tag":
        kw.setdefault("labels", ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"))
    return load_model(save_random_model(folder, task, **kw), dtype, device, fast)
