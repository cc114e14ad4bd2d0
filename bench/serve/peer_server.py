"""The classifier in mosec, written like its users do: one worker process with the model.

`python -m bench.serve.peer_server --address 127.0.0.1 --port PORT` serves the folder in
BENCH_MODEL. It loads, tokenizes and computes with our server's own code, so that only the servers
differ. The JSON of requests and replies is that of our server. mosec's default library reads and
writes it or, with BENCH_TUNED, msgspec, which is many times faster.
"""

import os
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bench.serve.classify import MAX_BATCH_SIZE, MODEL_VARIABLE, PATH, TUNED_VARIABLE
from sruserve.kernels import RaggedBatch
from sruserve.model.folder import load_model

if TYPE_CHECKING:  # mosec may not be installed
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
        """Compute the replies to request bodies."""
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
    """The same classifier with the fastest JSON library for mosec."""

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
