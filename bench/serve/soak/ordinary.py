"""Honest clients of all protocols, which check each reply: `python -m bench.serve.soak.ordinary …`.

They know the scores of each question and the text of a seed in advance. For every split of an input
into chunks, and for every event between two chunks, the final result must be the same.
"""

import argparse
import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc.aio import InferenceServerClient as GrpcClient
from tritonclient.utils import InferenceServerException
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus

from bench.serve.soak.expected import CLASSIFIER, LANGUAGE_MODEL, TEXT, ExpectedAnswers
from bench.serve.soak.http_client import Http
from bench.serve.soak.observations import Log, Refused, WrongAnswer

_PAUSE_SECONDS = 0.25  # between two requests of one client, on average
_AGAIN_SECONDS = 0.5
_sequences = count(random.randrange(1, 1 << 40))


class Client:
    """One client of one protocol. A subclass's `once` makes one complete request."""

    def __init__(self, log: Log, ports: argparse.Namespace, known: ExpectedAnswers) -> None:
        self.log, self.known = log, known
        self.port, self.grpc_port, self.key = ports.port, ports.grpc_port, ports.key
        self.http = Http(self.port, self.key)

    async def run(self) -> None:
        """Send requests forever, with random pauses like a person's."""
        while True:
            await asyncio.sleep(random.expovariate(1 / _PAUSE_SECONDS))
            await self.once(random.choice(self.known.questions))

    async def once(self, question: str) -> None:
        raise NotImplementedError

    async def insist(self, kind: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat a request until it succeeds, like client libraries; each try is logged."""
        while True:
            answer: list[Any] = []

            async def once(answer: list[Any] = answer) -> None:
                answer.append(await ask())

            if await self.log.time(kind, once):
                return answer[0]
            await asyncio.sleep(_AGAIN_SECONDS)


class Classify(Client):
    """A complete question."""

    async def once(self, question: str) -> None:
        async def ask() -> None:
            reply = await self.http.ask("/v1/classify", {"model": CLASSIFIER, "input": question})
            self.known.check(question, reply["results"][0]["scores"])

        await self.log.time("classify", ask)


class Predict(Client):
    """A complete question with the predict protocol."""

    async def once(self, question: str) -> None:
        async def ask() -> None:
            reply = await self.http.ask(f"/predict?model={CLASSIFIER}", {"inputs": question})
            scores = {each["label"]: each["score"] for each in reply}
            self.known.check(question, scores)

        await self.log.time("predict", ask)


class StateToken(Client):
    """A question in chunks, whose state is a token that the client sends."""

    async def once(self, question: str) -> None:
        state, last = None, None
        for chunk, more in _chunks(question):
            body = {"model": CLASSIFIER, "input": chunk, "more": more, "return_state": more}
            body |= {"state": state} if state else {}
            reply = await self.insist("token", partial(self.http.ask, "/v1/classify", body))
            last = reply["results"][0]
            state = last["state"]
        await self.log.time("token: whole", lambda: self.known.checked(question, last))


class ServerStream(Client):
    """A question in chunks on a server-held stream; each step is repeated until it succeeds."""

    async def once(self, question: str) -> None:
        options = {"model": CLASSIFIER, "idle_seconds": 600}
        stream = await self.insist("streams", partial(self.http.ask, "/v1/streams", options))
        path, last = f"/v1/streams/{stream['id']}", None
        for step, (chunk, more) in enumerate(_chunks(question), 1):
            body = {"step": step, "input": chunk, "more": more}
            reply = await self.insist("held", partial(self.http.ask, f"{path}/steps", body))
            last = reply["results"][0]
        await self.log.time("held: whole", lambda: self.known.checked(question, last))


class Complete(Client):
    """A completion as events, whose seed determines its text."""

    async def once(self, question: str) -> None:
        del question

        async def ask() -> None:
            events = await self.http.events("/v1/completions", {**TEXT, "stream": True})
            text = "".join(each["choices"][0]["text"] for each in events)
            if text != self.known.text:
                raise WrongAnswer(f"the text is {text!r}")

        await self.log.time("completions", ask)


class Score(Client):
    """A score of five characters, which take the model hardly any time."""

    async def once(self, question: str) -> None:
        del question
        body = {"model": LANGUAGE_MODEL, "input": "To be"}
        await self.log.time("score", lambda: self.http.ask("/v1/score", body))


class WebSocketSession(Client):
    """A question in chunks over a WebSocket; starts again if the server closes it."""

    async def once(self, question: str) -> None:
        await self.log.time("socket", lambda: self._talk(question))

    async def _talk(self, question: str) -> None:
        try:
            headers = {"authorization": f"Bearer {self.key}"}
            url = f"ws://127.0.0.1:{self.port}/v1/stream"
            async with connect(url, additional_headers=headers, open_timeout=60) as socket:
                reply: dict[str, Any] = {}
                frame: dict[str, Any] = {"model": CLASSIFIER}
                for chunk, more in _chunks(question):
                    await socket.send(json.dumps({**frame, "input": chunk, "more": more}))
                    reply, frame = json.loads(await asyncio.wait_for(socket.recv(), 60)), {}
                    if "error" in reply:
                        raise Refused(f"429 {reply['error']['code']} in a socket")
                self.known.check(question, reply["scores"])
        except InvalidStatus as error:
            raise Refused(f"{error.response.status_code} at a handshake") from None
        except (ConnectionClosed, InvalidMessage) as error:  # closed, perhaps in the handshake
            raise EOFError from error


class GrpcSequence(Client):
    """A question in chunks over gRPC, as a numbered sequence."""

    async def once(self, question: str) -> None:
        name, last = f"soak-{next(_sequences)}", None
        chunks = _chunks(question)
        for step, (chunk, more) in enumerate(chunks, 1):
            last = await self.insist("sequence", partial(self._infer, name, chunk, more, step))
        assert last is not None
        scores = dict(zip(self.known.scores[question], last.tolist(), strict=True))
        await self.log.time(
            "sequence: whole", lambda: self.known.checked(question, {"scores": scores})
        )

    async def _infer(self, name: str, chunk: str, more: bool, step: int) -> Any:
        text = triton.InferInput("text", [1, 1], "BYTES")
        text.set_data_from_numpy(np.array([[chunk.encode()]], object))
        client = GrpcClient(f"127.0.0.1:{self.grpc_port}")
        try:
            result = await client.infer(
                CLASSIFIER,
                [text],
                sequence_id=name,
                sequence_start=step == 1,
                sequence_end=not more,
                parameters={"sru_step": step},
                headers={"authorization": f"Bearer {self.key}"},
                client_timeout=60,
            )
        except InferenceServerException as error:
            raise _of_grpc(error) from None
        finally:
            await client.close()
        return result.as_numpy("scores")[0]


class Probe(Client):
    """An orchestrator's readiness probe, without a key."""

    async def once(self, question: str) -> None:
        del question
        async with Http(self.port, None) as http:
            await self.log.time("readyz", lambda: http.ask("/readyz"))


CLIENTS: tuple[type[Client], ...] = (
    Classify, Predict, StateToken, ServerStream, Complete, Score, WebSocketSession, GrpcSequence,
    Probe,
)  # fmt: skip


def _chunks(question: str) -> list[tuple[str, bool]]:
    """Cut a question into three parts at random; returns each with whether more follows."""
    cuts = sorted(random.sample(range(1, len(question)), 2))
    parts = [question[: cuts[0]], question[cuts[0] : cuts[1]], question[cuts[1] :]]
    return [(part, i < 2) for i, part in enumerate(parts)]


def _of_grpc(error: InferenceServerException) -> Exception:
    """Convert a call's error to an exception with the corresponding HTTP status."""
    code = str(error.status()).removeprefix("StatusCode.")
    message = str(error.message())[:60]
    if code == grpc.StatusCode.UNAVAILABLE.name and "store" not in message:
        return EOFError(message)  # no reply
    status = {"RESOURCE_EXHAUSTED": 429, "UNAVAILABLE": 503, "INTERNAL": 500}.get(code, 400)
    return Refused(f"{status} {code} {message}")


async def _main(arguments: argparse.Namespace) -> None:
    known = ExpectedAnswers()
    await known.learn(arguments.port, arguments.key)
    with arguments.log.open("a") as file:
        log = Log(file)
        clients = [kind(log, arguments, known) for kind in CLIENTS for _ in range(arguments.each)]
        await asyncio.gather(*(client.run() for client in clients))


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.serve.soak.ordinary", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("grpc_port", type=int)
    parser.add_argument("key")
    parser.add_argument("log", type=Path)
    parser.add_argument(
        "--each",
        type=int,
        default=1,
        help="clients of each kind; 1 takes about a third of two cores",
    )
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
