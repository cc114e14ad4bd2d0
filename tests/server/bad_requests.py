"""A program that serves, sends itself bad requests, and prints what each round left in memory.

A process of its own has nothing else that allocates: no other test's server, and no pytest, which
keeps each record that a library logs.
"""

import json
import os
import sys
from pathlib import Path

import httpx

from tests.memory import malloc_bytes, python_blocks
from tests.server.serving import serve_models

ROUNDS = 10


def send(client: httpx.Client, count: int) -> None:
    """Ask for what is not there, by `count` new names."""
    text = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}
    for number in range(count):
        name = f"{number}-{os.urandom(8).hex()}"
        infer = {"inputs": [text], "parameters": {"max_tokens": 1, "sequence_id": name}}
        client.post("/v1/score", json={"model": name, "input": "a"})
        client.post("/v1/streams", json={"model": "characters", "state": name})
        client.get(f"/v1/streams/{name}")
        client.post(f"/v2/models/{name}/infer", json=infer)
        client.post("/v2/models/characters/infer", json=infer)


def main(folders: Path) -> None:
    # an idle connection may be closed just when the next request is sent on it
    alone = httpx.Limits(max_keepalive_connections=0)
    with (
        serve_models(folders, "question", "characters", "other", grpc_port=0) as (served, _),
        httpx.Client(base_url=served.base_url, limits=alone, timeout=60) as client,
    ):
        send(client, 10)
        metrics = len(client.get("/metrics").text)
        send(client, 100)
        left = []
        for _ in range(ROUNDS):
            before = malloc_bytes() + 64 * python_blocks()
            send(client, 100)
            left.append(malloc_bytes() + 64 * python_blocks() - before)
        metrics = len(client.get("/metrics").text) - metrics
    print(json.dumps({"bytes": left, "metrics": metrics}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
