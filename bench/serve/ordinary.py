"""Honest clients of every protocol, who check each answer: `python -m bench.serve.ordinary …`.

They know from the start what a question is labelled and how a text goes on. However an input is cut
into chunks, and whatever happens between two of them, the end has to be the same.
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

from bench.serve.http_client import Http
from bench.serve.known import CLASSIFIER, LANGUAGE_MODEL, TEXT, Known
from bench.serve.seen import Log, Refused, WrongAnswer

_PAUSE_SECONDS = 0.25  # between two requests of one client, on average
_AGAIN_SECONDS = 0.5
_sequences = count(random.randrange(1, 1 << 40))


class Client:
    """One client of one protocol; subclasses ask for one thing, whole."""

    def __init__(self, log: Log, ports: argparse.Namespace, known: Known) -> None:
        self.log, self.known = log, known
        self.port, self.grpc_port, self.key = ports.port, ports.grpc_port, ports.key
        self.http = Http(self.port, self.key)

    async def run(self) -> None:
        """Ask again and again, like somebody who thinks between two questions."""
        while True:
            await asyncio.sleep(random.expovariate(1 / _PAUSE_SECONDS))
            await self.once(random.choice(self.known.questions))

    async def once(self, question: str) -> None:
        raise NotImplementedError

    async def insist(self, kind: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask until there is an answer, as client libraries do; each try is written down."""
        while True:
            answer: list[Any] = []

            async def once(answer: list[Any] = answer) -> None:
                answer.append(await ask())

            if await self.log.time(kind, once):
                return answer[0]
            await asyncio.sleep(_AGAIN_SECONDS)


class Classify(Client):
    """A whole question."""

    async def once(self, question: str) -> None:
        async def ask() -> None:
            reply = await self.http.ask("/v1/classify", {"model": CLASSIFIER, "input": question})
            self.known.check(question, reply["results"][0]["scores"])

        await self.log.time("classify", ask)


class Predict(Client):
    """The same in another protocol."""

    async def once(self, question: str) -> None:
        async def ask() -> None:
            reply = await self.http.ask(f"/predict?model={CLASSIFIER}", {"inputs": question})
            found = {each["label"]: each["score"] for each in reply}
            self.known.check(question, found)

        await self.log.time("predict", ask)


class Token(Client):
    """A question word by word, its state carried by the client."""

    async def once(self, question: str) -> None:
        state, last = None, None
        for chunk, more in _chunks(question):
            body = {"model": CLASSIFIER, "input": chunk, "more": more, "return_state": more}
            body |= {"state": state} if state else {}
            reply = await self.insist("token", partial(self.http.ask, "/v1/classify", body))
            last = reply["results"][0]
            state = last["state"]
        await self.log.time("token: whole", lambda: self.known.checked(question, last))


class Held(Client):
    """A question word by word, its state held by the server, each step sent until it is done."""

    async def once(self, question: str) -> None:
        asked = {"model": CLASSIFIER, "idle_seconds": 600}
        made = await self.insist("streams", partial(self.http.ask, "/v1/streams", asked))
        path, last = f"/v1/streams/{made['id']}", None
        for step, (chunk, more) in enumerate(_chunks(question), 1):
            body = {"step": step, "input": chunk, "more": more}
            reply = await self.insist("held", partial(self.http.ask, f"{path}/steps", body))
            last = reply["results"][0]
        await self.log.time("held: whole", lambda: self.known.checked(question, last))


class Complete(Client):
    """A text as events; a seed fixes it, whatever else the server does."""

    async def once(self, question: str) -> None:
        del question

        async def ask() -> None:
            told = await self.http.events("/v1/completions", {**TEXT, "stream": True})
            text = "".join(each["choices"][0]["text"] for each in told)
            if text != self.known.text:
                raise WrongAnswer(f"the text is {text!r}")

        await self.log.time("completions", ask)


class Score(Client):
    """Five characters: what hardly takes any time of the model."""

    async def once(self, question: str) -> None:
        del question
        body = {"model": LANGUAGE_MODEL, "input": "To be"}
        await self.log.time("score", lambda: self.http.ask("/v1/score", body))


class Socket(Client):
    """A question word by word over a WebSocket; begun again where the server hangs up."""

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
        except (ConnectionClosed, InvalidMessage) as error:  # hung up on, in a handshake too
            raise EOFError from error


class Sequence(Client):
    """A question word by word over gRPC, as a numbered sequence."""

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
    """What an orchestrator asks, without a key."""

    async def once(self, question: str) -> None:
        del question
        async with Http(self.port, None) as http:
            await self.log.time("readyz", lambda: http.ask("/readyz"))


CLIENTS: tuple[type[Client], ...] = (
    Classify, Predict, Token, Held, Complete, Score, Socket, Sequence, Probe,
)  # fmt: skip


def _chunks(question: str) -> list[tuple[str, bool]]:
    """A question in two or three parts, cut anywhere, and whether more follows."""
    cuts = sorted(random.sample(range(1, len(question)), 2))
    parts = [question[: cuts[0]], question[cuts[0] : cuts[1]], question[cuts[1] :]]
    return [(part, i < 2) for i, part in enumerate(parts)]


def _of_grpc(error: InferenceServerException) -> Exception:
    """The error of a call, by the status that HTTP would have."""
    code = str(error.status()).removeprefix("StatusCode.")
    told = str(error.message())[:60]
    if code == grpc.StatusCode.UNAVAILABLE.name and "store" not in told:
        return EOFError(told)  # nobody answered
    status = {"RESOURCE_EXHAUSTED": 429, "UNAVAILABLE": 503, "INTERNAL": 500}.get(code, 400)
    return Refused(f"{status} {code} {told}")


async def _main(arguments: argparse.Namespace) -> None:
    known = Known()
    await known.learn(arguments.port, arguments.key)
    with arguments.log.open("a") as file:
        log = Log(file)
        clients = [kind(log, arguments, known) for kind in CLIENTS for _ in range(arguments.each)]
        await asyncio.gather(*(client.run() for client in clients))


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.serve.ordinary", description=__doc__)
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
