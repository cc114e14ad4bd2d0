"""Saves networks with one release of `sru`, in a process of its own: `release_worker RELEASE`.

The release is on PYTHONPATH. Reads a JSON list of [class, options] from stdin, and saves a network
with each; writes a JSON list of what came of each: the folder's family, or the error.
"""

import json
import sys
import tempfile
import warnings
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

import sruserve
from tests.oracles.worker import without_compiling


class Network(nn.Module):
    """A classifier of words by their last output."""

    def __init__(self, kind: Any, options: dict[str, Any]) -> None:
        super().__init__()
        self.emb = nn.Embedding(20, 9)
        self.rnn = kind(9, 6, **options)
        self.fc = nn.Linear(12 if options.get("bidirectional") else 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():  # without gradients, some releases need compiled code
            out = self.rnn(self.emb(x).transpose(0, 1))[0]
        scores: Tensor = self.fc(out[-1])
        return scores


def saved(library: Any, name: str, options: dict[str, Any]) -> str:
    torch.manual_seed(0)
    network = Network(getattr(library, name), options)
    for parameter, tensor in network.named_parameters():
        if parameter.endswith(("weight_c", "bias", ".a", ".b", "layer_norm.weight", "alpha")):
            nn.init.normal_(tensor, 0.5, 0.4)  # as made, zeros or ones would hide mistakes
    with tempfile.TemporaryDirectory() as folder:
        try:
            return sruserve.save(network, f"{folder}/model", "classify").config.model_type
        except ValueError as error:
            return str(error)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of the releases, about themselves
    without_compiling(sys.argv[1])
    module = import_module("sru")
    print(json.dumps([saved(module, *request) for request in json.load(sys.stdin)]))
