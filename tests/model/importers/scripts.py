"""Checkpoints of the `sru` reference's scripts, with random weights."""

import torch
from torch import Tensor

from tests.support import random_config, random_tensors

RNN = {"input_size": 8, "hidden_size": 12, "num_layers": 2}
LABELS = ["cold", "warm", "hot"]
WORDS = ["<oov>", "the", "cat", "sat"]

CLASSIFIER = {"embedding.": "emb_layer.embedding.", "rnn.": "encoder.", "output.": "out."}
ENWIK8 = {"embedding.": "embedding_layer.", "output.": "output_layer."}
WORD_MODEL = {"embedding.": "embedding_layer.embedding.", "output.": "output_layer."}


def script_tensors(task: str, names: dict[str, str]) -> dict[str, Tensor]:
    """A network of a script; names: its names for ours, by their beginnings."""
    labels = () if task == "generate" else tuple(LABELS)
    config = random_config(task, vocab_size=4, labels=labels, **RNN)  # type: ignore[arg-type]
    tensors = random_tensors(config)
    for new, old in names.items():
        tensors = {name.replace(new, old, 1): tensor for name, tensor in tensors.items()}
    return {k: torch.ones(1) if k.endswith("scale_x") else t for k, t in tensors.items()}
