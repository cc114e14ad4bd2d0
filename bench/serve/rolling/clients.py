"""Clients that follow the documented rules, and know whether anything was lost."""

import asyncio
import json
import re
from contextlib import suppress
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc.aio import InferenceServerClient
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from bench.serve import models
from bench.serve.rolling.cluster import Cluster
from bench.serve.soak.http_client import Http

CLASSIFIER, LANGUAGE_MODEL = models.CLASSIFIER.name, models.LANGUAGE_MODEL.name
QUESTION = "How far is it from Denver to Aspen ?"
PROMPT = "ROMEO:"
_SHORT, _LONG = 20, 400  # tokens of a request
_SERVICE_RESTART = 1012
# gRPC's own way to repeat what no replica has done; docs/operations.md has the same.
RETRIES = {
    "methodConfig": [
        {
            "name": [{"service": "inference.GRPCInferenceService"}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


class Client:
    """Sends requests until it is stopped.

    done: requests that ended well. continued: how often it continued elsewhere, by the rules.
    text: what was generated, for `seed`; empty if the client classifies. replica: the name of the
    one that sends a completion at the moment.
    """

    @property
    def replica(self) -> str | None:
        return None

    def __init__(self, cluster: Cluster, seed: int, pause_seconds: float) -> None:
        self.port, self.grpc_port = cluster.port, cluster.grpc_port
        self.seed, self.pause_seconds = seed, pause_seconds
        self.done = self.continued = 0
        self.text = ""
        self.stopped = False
        self._http = Http(self.port, None)

    async def run(self) -> None:
        """Raise if a request fails otherwise than documented."""
        async with self._http:
            while not self.stopped:
                await self.once()
                self.done += 1
                await asyncio.sleep(self.pause_seconds)

    async def once(self) -> None:
        raise NotImplementedError


class Classify(Client):
    """One question again and again, on one connection: the answer must stay the same."""

    def __init__(self, cluster: Cluster, seed: int, pause_seconds: float) -> None:
        super().__init__(cluster, seed, pause_seconds)
        self._answer = None

    async def once(self) -> None:
        body = {"model": CLASSIFIER, "input": QUESTION}
        answer = (await self._http.ask("/v1/classify", body))["results"][0]["scores"]
        self._answer = self._answer or answer
        assert answer == self._answer, "another answer than before"


class GrpcClassify(Client):
    """The same over gRPC, whose own retries are on."""

    def __init__(self, cluster: Cluster, seed: int, pause_seconds: float) -> None:
        super().__init__(cluster, seed, pause_seconds)
        self._client: InferenceServerClient | None = None
        self._text = triton.InferInput("text", [1, 1], "BYTES")
        self._text.set_data_from_numpy(np.array([[QUESTION.encode()]], object))
        self._answer = None

    async def run(self) -> None:
        options = [("grpc.enable_retries", 1), ("grpc.service_config", json.dumps(RETRIES))]
        self._client = InferenceServerClient(f"127.0.0.1:{self.grpc_port}", channel_args=options)
        try:
            await super().run()
        finally:
            await self._client.close()

    async def once(self) -> None:
        assert self._client is not None
        scores = (await self._client.infer(CLASSIFIER, [self._text])).as_numpy("scores").tolist()
        self._answer = self._answer or scores
        assert scores == self._answer, "another answer than before"


class Complete(Client):
    """A text by streamed completions, each of which continues the state of the last one."""

    def __init__(self, cluster: Cluster, seed: int, pause_seconds: float) -> None:
        super().__init__(cluster, seed, pause_seconds)
        self._state = None

    @property
    def replica(self) -> str | None:
        name = re.search(rb"x-replica: (\w+)", self._http.head)
        return name and name[1].decode()

    async def once(self) -> None:
        body = {"model": LANGUAGE_MODEL, "max_tokens": _LONG, "stream": True, "return_state": True}
        if self._state is None:
            body |= {"prompt": PROMPT, "seed": self.seed}
        else:
            body |= {"prompt": "", "state": self._state}
        try:
            events = await self._http.events("/v1/completions", body)
        finally:
            self._http.head = b""
        choices = [each["choices"][0] for each in events]
        self.text += "".join(each["text"] for each in choices)
        self._state = choices[-1]["state"]
        self.continued += choices[-1]["stop_reason"] == "draining"


class HeldStream(Client):
    """A text by the steps of a stream that Redis holds. Every second step is streamed."""

    def __init__(self, cluster: Cluster, seed: int, pause_seconds: float) -> None:
        super().__init__(cluster, seed, pause_seconds)
        self._path, self._step = "", 0

    async def once(self) -> None:
        if not self._path:
            stream = await self._http.ask("/v1/streams", {"model": LANGUAGE_MODEL})
            self._path = f"/v1/streams/{stream['id']}/steps"
        self._step += 1
        body = {"step": self._step, "prompt": "", "max_tokens": _SHORT}
        if self._step == 1:
            body |= {"prompt": PROMPT, "seed": self.seed}
        if self._step % 2:
            choices = (await self._http.ask(self._path, body))["choices"]
        else:
            choices = await self._streamed({**body, "stream": True})
        self.text += "".join(each["text"] for each in choices)

    async def _streamed(self, body: dict[str, Any]) -> list[Any]:
        """The rule: a step whose events end without [DONE] is repeated, byte for byte."""
        while True:
            try:
                return [each["choices"][0] for each in await self._http.events(self._path, body)]
            except EOFError:
                self.continued += 1


class Socket(Client):
    """A text by the frames of a WebSocket; after a close with 1012, another one continues it."""

    def __init__(self, cluster: Cluster, seed: int, pause_seconds: float) -> None:
        super().__init__(cluster, seed, pause_seconds)
        self._state: str | None = None
        self._frame: dict[str, Any] = {"prompt": PROMPT, "seed": seed, "max_tokens": _SHORT}

    async def run(self) -> None:
        while not self.stopped:
            async with connect(f"ws://127.0.0.1:{self.port}/v1/stream") as socket:
                begin = {"state": self._state} if self._state else {}
                await _send(socket, {"model": LANGUAGE_MODEL, **begin})
                if await self._next(socket) is None:
                    continue
                await self._talk(socket)

    async def _talk(self, socket: ClientConnection) -> None:
        while not self.stopped:
            await _send(socket, self._frame)
            finished = False
            while not finished:
                answer = await self._next(socket)
                if answer is None:
                    return  # the frame is sent again on the next socket
                self.text += answer["choices"][0]["text"]
                finished = answer["choices"][0]["finish_reason"] is not None
            self._frame = {"prompt": "", "max_tokens": _SHORT}
            self.done += 1
            await asyncio.sleep(self.pause_seconds)

    async def _next(self, socket: ClientConnection) -> dict[str, Any] | None:
        """The next answer. None: the server stops, and has handed over the state."""
        answer: dict[str, Any] = json.loads(await socket.recv())
        if "error" not in answer:
            return answer
        assert answer["error"]["code"] == "draining", answer
        self._state = answer["state"] or self._state  # null: the first frame was not answered
        self.continued += 1
        await socket.wait_closed()
        assert socket.close_code == _SERVICE_RESTART, socket.close_code
        return None


async def _send(socket: ClientConnection, frame: dict[str, Any]) -> None:
    """Send a frame. If the server has closed the socket, its last frame is still to be read."""
    with suppress(ConnectionClosed):
        await socket.send(json.dumps(frame))


KINDS: tuple[type[Client], ...] = (Classify, GrpcClassify, Complete, HeldStream, Socket)
