"""200 live streams live through three deployments of other weights, beside a server without any."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection

from sruserve.server.app import Application
from tests.server.conftest import CHARACTERS, Serve
from tests.server.observing import metric
from tests.server.repository.changing_models import change
from tests.server.websocket.talks import connected, run
from tests.support import save_random_model

_TOKENS, _HELD, _SEQUENCES, _SOCKETS = 130, 40, 15, 15
_VERSIONS = (2, 3, 4)
_FIRST = {"max_tokens": 6, "logprobs": 1}


def save_poems(models: Path, version: int) -> None:
    save_random_model(
        models / "poems" / str(version), vocabulary=CHARACTERS, vocab_size=256, seed=version
    )


class Streams:
    """Live streams of every protocol on one server; a step of all of them tells all they say."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self._states: list[str | None] = [None] * _TOKENS
        self._held = [self._create() for _ in range(_HELD)]
        self._steps = 0

    def _create(self) -> str:
        return str(self._post("/v1/streams", model="poems")["id"])

    def _post(self, path: str, **body: Any) -> dict[str, Any]:
        reply = self.client.post(path, json=body)
        assert reply.is_success, reply.text
        return dict(reply.json())

    def step(self) -> list[Any]:
        """The texts and scores of the next step of all streams but sockets, in their order."""
        self._steps += 1
        with ThreadPoolExecutor(8) as pool:
            works = [
                pool.map(self._with_token, range(_TOKENS)),
                pool.map(self._of_held, range(_HELD)),
                pool.map(self._of_sequence, range(_SEQUENCES)),
            ]
            return [each for work in works for each in work]

    def _body(self, number: int) -> dict[str, Any]:
        begins = {"prompt": f"stream {number}", "seed": number} if self._steps == 1 else {}
        return {"prompt": "", **_FIRST, **begins}

    def _with_token(self, number: int) -> Any:
        body = {"model": "poems", "return_state": True, **self._body(number)}
        reply = self._post("/v1/completions", **body, state=self._states[number])
        (choice,) = reply["choices"]
        self._states[number] = choice.pop("state")
        return choice

    def _of_held(self, number: int) -> Any:
        path = f"/v1/streams/{self._held[number]}/steps"
        return self._post(path, step=self._steps, **self._body(1000 + number))["choices"]

    def _of_sequence(self, number: int) -> Any:
        first, name = self._steps == 1, f"sequence {number}"
        text = name if first else ""
        parameters = {"sequence_id": name, "sequence_start": first, "max_tokens": 6}
        parameters |= {"seed": number} if first else {}
        tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [text]}
        path = "/v2/models/poems/infer"
        reply = self._post(path, inputs=[tensor], parameters=parameters)
        return [output["data"] for output in reply["outputs"]], reply["model_version"]


async def speak(sockets: list[ClientConnection], first: bool) -> list[Any]:
    """The chunks of the next completion of each socket, joined."""

    async def complete(number: int, socket: ClientConnection) -> Any:
        begin = {"model": "poems", "prompt": f"socket {number}", "seed": number} if first else {}
        await socket.send(json.dumps({"prompt": "", **_FIRST, **begin}))
        text, scores = "", list[float]()
        while True:
            piece = json.loads(await socket.recv())
            assert "error" not in piece, piece
            text += piece["choices"][0]["text"]
            scores += piece["choices"][0]["logprobs"]["token_logprobs"]
            if piece["choices"][0]["finish_reason"] is not None:
                return text, scores

    return list(await asyncio.gather(*(complete(i, each) for i, each in enumerate(sockets))))


@pytest.fixture(scope="module")
def servers(
    serve: Serve, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, list[tuple[httpx.Client, Application]]]]:
    """A server whose models change, and one whose models do not; the folder of the first."""
    parents = [tmp_path_factory.mktemp(name) for name in ("deploying", "resting")]
    with ExitStack() as stack:
        running = []
        for parent in parents:
            save_poems(parent, 1)
            settings: dict[str, Any] = {"models": parent, "model_folders": ()}
            running.append(stack.enter_context(serve(model_control=True, **settings)))
        yield parents[0], running


def test_200_live_streams_live_through_three_deployments_and_change_no_character(
    servers: tuple[Path, list[tuple[httpx.Client, Application]]],
) -> None:
    models, ((deploying, application), (resting, _)) = servers
    assert _TOKENS + _HELD + _SEQUENCES + _SOCKETS == 200
    ours, theirs = Streams(deploying), Streams(resting)

    async def talk() -> None:
        async with AsyncExitStack() as stack:
            sockets = {
                client: [
                    await stack.enter_async_context(connected(client)) for _ in range(_SOCKETS)
                ]
                for client in (deploying, resting)
            }
            for version in (1, *_VERSIONS):
                deployment = threading.Thread(target=deploy, args=(version,))
                deployment.start()  # in the middle of the streams' steps
                results = await asyncio.to_thread(ours.step)
                spoken = await speak(sockets[deploying], version == 1)
                await asyncio.to_thread(deployment.join)
                assert results == await asyncio.to_thread(theirs.step)
                assert spoken == await speak(sockets[resting], version == 1)
            assert await asyncio.to_thread(ours.step) == await asyncio.to_thread(theirs.step)

    def deploy(version: int) -> None:
        if version > 1:
            save_poems(models, version)
            assert change(deploying, "poems", "load").status_code == 200

    run(talk)
    assert deploying.get("/v1/models/poems").json()["version"] == "4"
    body = {"model": "poems", "prompt": "new", "seed": 5, "max_tokens": 9}
    new, old = (client.post("/v1/completions", json=body).json() for client in (deploying, resting))
    assert new["choices"] != old["choices"], "new streams get the new weights"
    named = deploying.post("/v1/completions", json={**body, "model": "poems@1"}).json()
    assert named["choices"] == old["choices"]
    assert len(application.lifecycle.repository.engines) == 4
    assert metric(deploying, 'sru_model_versions{model="poems",state="older"}') == 3
