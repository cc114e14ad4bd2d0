"""The classifier behind mosec, as its users write it: one worker process with the model in it.

`python -m bench.peer_server --address 127.0.0.1 --port PORT` serves the folder in BENCH_MODEL. It
loads, tokenizes and computes with the very code that our server uses, so that only the servers
differ. JSON in and out have the shape of ours, and are coded by what mosec takes by itself or, with
BENCH_TUNED, by msgspec, which is many times faster.
"""

import os
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bench.classify import MAX_BATCH_SIZE, MODEL_VARIABLE, PATH, TUNED_VARIABLE
from sruserve.kernels import RaggedBatch
from sruserve.model.folder import load_model

if TYPE_CHECKING:  # the same to a type checker where mosec is not installed
    Server: Any
    Worker = object
    json: Any
else:
    from mosec import Server, Worker
    from msgspec import json

MAX_WAIT_MS = 1


class Classifier(Worker):
    """Labels a batch of questions in one forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self._model = load_model(Path(os.environ[MODEL_VARIABLE]))
        self._model.network.warm_up()
        self._states = self._model.network.layout.allocate(MAX_BATCH_SIZE)
        self._numbers = count(1)

    def forward(self, data: list[Any]) -> list[Any]:
        """From bodies to replies."""
        codec, network = self._model.codec, self._model.network
        assert codec is not None
        ids = [codec.encode(body["input"])[0] for body in data]
        offsets = torch.zeros(len(ids) + 1, dtype=torch.int64)
        offsets[1:] = torch.tensor([len(each) for each in ids]).cumsum(0)
        rows = torch.arange(len(ids))
        batch = RaggedBatch(offsets, self._states, torch.full_like(rows, -1), rows)
        hidden = network.hidden(torch.from_numpy(np.concatenate(ids)), batch, offsets[1:] - 1)
        with torch.inference_mode():
            probabilities = network.logits(hidden).softmax(1).tolist()
        return [self._reply(*each) for each in zip(ids, probabilities, strict=True)]

    def _reply(self, ids: Any, scores: list[float]) -> dict[str, Any]:
        labels = self._model.labels
        best = max(scores)
        result = {
            "label": labels[scores.index(best)],
            "score": best,
            "scores": dict(zip(labels, scores, strict=True)),
            "state": None,
        }
        return {
            "id": f"cls-{next(self._numbers):020x}",
            "model": self._model.name,
            "results": [result],
            "usage": {"steps": len(ids)},
        }


class TunedClassifier(Classifier):
    """The same with the fastest JSON there is for mosec."""

    def deserialize(self, data: bytes) -> Any:
        return json.decode(data)

    def serialize(self, data: Any) -> bytes:
        encoded: bytes = json.encode(data)
        return encoded


if __name__ == "__main__":
    server = Server()
    worker = TunedClassifier if TUNED_VARIABLE in os.environ else Classifier
    server.append_worker(
        worker, max_batch_size=MAX_BATCH_SIZE, max_wait_time=MAX_WAIT_MS, route=PATH
    )
    server.run()
