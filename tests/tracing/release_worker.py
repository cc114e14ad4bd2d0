"""Saves networks with releases of `sru`, each release in a process of its own.

Reads JSON from stdin: of each release, its folder and a list of [class, options]. Writes a JSON
object: of each release, a list of what came of its networks: the folder's family, or the error.
The processes are forked from one that has saved a network, and so has all imports.
"""

import gc
import json
import os
import sys
import tempfile
import warnings
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

import sruserve
from tests.oracles.worker import without_compiling

_LONGEST = 600  # steps; networks of `tests.tracing.networks` are compared at more


class Network(nn.Module):
    """A classifier of words by their last output."""

    def __init__(self, kind: Any, options: dict[str, Any]) -> None:
        super().__init__()
        self.emb = nn.Embedding(20, 9)
        self.rnn = kind(9, 6, **options)
        self.fc = nn.Linear(12 if options.get("bidirectional") else 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > _LONGEST:
            raise ValueError("the releases' loops over the steps would take seconds")
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


def saved_by(release: str, folder: str, requests: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """What came of each network, in a process that has imported no other release."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        sys.path.insert(0, folder)
        without_compiling(release)
        module = import_module("sru")
        os.write(writing, json.dumps([saved(module, *request) for request in requests]).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as result:
        written = result.read()
    assert os.waitpid(child, 0)[1] == 0, release
    outcomes: list[str] = json.loads(written)
    return outcomes


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of the releases, about themselves
    assert saved(nn, "LSTM", {}) == "lstm"
    gc.collect()
    gc.freeze()
    jobs = json.load(sys.stdin)
    print(json.dumps({release: saved_by(release, *each) for release, each in jobs.items()}))
