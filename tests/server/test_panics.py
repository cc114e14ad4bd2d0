"""A panic of a library in Rust: one request fails and says so, and everything else lives on."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from tritonclient.utils import InferenceServerException

from sruserve.server.app import Application
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Generated
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.errors import EngineFailure, faults
from sruserve.server.offload import run_in_thread
from tests.server.conftest import LABELS, WORDS, Serve
from tests.server.engine.driver import Driver
from tests.server.kserve.conftest import grpc_address
from tests.server.observing import metric, until
from tests.server.posting import refusal
from tests.server.websocket.talks import ask, connected, run
from tests.support import random_model, save_random_model

PANICS = "x" * 200  # the pattern's search gives up on it
SPLIT = pre_tokenizers.Split(Regex(r"(x+x+)+y"), "isolated")


@pytest.fixture(scope="module")
def server(
    serve: Serve, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[httpx.Client, Application]]:
    """Models whose tokenizer looks for what takes too long to find in some texts."""
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<oov>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), SPLIT])
    words: dict[str, Any] = {
        "vocabulary": tokenizer.to_str().encode(), "vocab_size": len(WORDS)
    }  # fmt: skip
    parent = tmp_path_factory.mktemp("models")
    save_random_model(parent / "question", "classify", labels=LABELS, **words)
    save_random_model(parent / "words", **words)
    with serve(models=parent, model_folders=(), grpc_port=0) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: tuple[httpx.Client, Application]) -> httpx.Client:
    return server[0]


def counted(client: httpx.Client, route: str, model: str = "question") -> float:
    line = f'sru_requests_total{{model="{model}",outcome="error",route="{route}"}}'
    return metric(client, line)


def post_panic(path: str, **body: Any) -> Any:
    return pytest.param(path, body, id=f"{path} {str(body)[:30]}")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        post_panic("/v1/classify", model="question", input=PANICS),
        post_panic("/v1/classify", model="question", input=["who", PANICS]),
        post_panic("/v1/classify", model="question", input=PANICS + " a" * 50_000),
        post_panic("/v1/completions", model="words", prompt=PANICS),
        post_panic("/v1/completions", model="words", prompt=PANICS, stream=True),
        post_panic("/v1/score", model="words", input=PANICS),
    ],
)
def test_a_panic_is_a_500_that_is_counted_and_logged(
    client: httpx.Client, path: str, body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    before = counted(client, path, body["model"])
    with caplog.at_level(logging.ERROR):
        refusal(client.post(path, json=body), 500, "internal_error", None)
    until(lambda: counted(client, path, body["model"]) == before + 1)
    assert "retry-limit-in-match over" in caplog.text
    good = client.post("/v1/classify", json={"model": "question", "input": "who"})
    assert good.status_code == 200


def test_a_panic_in_a_frame_is_reported_and_the_socket_stays_open(client: httpx.Client) -> None:
    async def talk() -> None:
        async with connected(client) as connection:
            reply = await ask(connection, model="question", input=PANICS + " a ")
            assert reply["error"]["code"] == "internal_error"
            assert "label" in str(await ask(connection, model="question", input="who is it "))

    run(talk)


def test_a_panic_in_a_streams_step_is_reported_and_the_stream_continues(
    client: httpx.Client,
) -> None:
    stream = client.post("/v1/streams", json={"model": "question"}).json()["id"]
    path = f"/v1/streams/{stream}/steps"
    reply = client.post(path, json={"step": 1, "input": PANICS + " "})
    refusal(reply, 500, "internal_error", None)
    good = client.post(path, json={"step": 1, "input": "who "})
    assert good.status_code == 200, good.text


def test_a_panic_over_kserve_is_an_internal_error(
    server: tuple[httpx.Client, Application],
) -> None:
    client, application = server
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [PANICS]}
    known = client.get("/v2/models/question").json()["inputs"][0]
    tensor |= {"name": known["name"], "shape": [1] * len(known["shape"])}
    reply = client.post("/v2/models/question/infer", json={"inputs": [tensor]})
    assert reply.status_code == 500, reply.text
    with triton.InferenceServerClient(grpc_address(application)) as rpc:
        tensor_input = triton.InferInput(known["name"], tensor["shape"], "BYTES")
        content = np.array([PANICS.encode()], dtype=object)
        tensor_input.set_data_from_numpy(content.reshape([1] * len(known["shape"])))
        with pytest.raises(InferenceServerException) as refused:
            rpc.infer("question", [tensor_input])
        assert refused.value.status() == "StatusCode.INTERNAL"
        assert rpc.is_server_live()


def panic() -> Any:
    """Let the library panic."""
    SPLIT.pre_tokenize_str(PANICS)


def test_a_panic_in_a_thread_of_its_own_reaches_its_waiter() -> None:
    async def wait() -> None:
        async with asyncio.timeout(60):
            await run_in_thread("panics", panic)

    with pytest.raises(BaseException, match="retry-limit") as raised:
        asyncio.run(wait())
    assert isinstance(raised.value, faults())
    assert not isinstance(raised.value, Exception)


class Panics:
    """A constraint whose grammar panics at its beginning, or at its first token."""

    identity = b"0" * 16
    problem = None
    consumed, length, uncommitted, ended = b"", 0, 0, False

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once

    def begin(self, consumed: bytes = b"") -> Any:
        if self.at_once:
            panic()
        return self

    @property
    def allowed_ids(self) -> Any:
        return panic()

    def commit(self, count: int) -> None:
        pass


@pytest.mark.parametrize("at_once", [True, False], ids=["beginning", "token"])
def test_a_panic_in_the_engine_ends_its_own_request(
    at_once: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("lm") / "bytes"

    async def both(driver: Driver) -> None:
        with pytest.raises(EngineFailure):
            await driver.generate("a", 5, constraint=Panics(at_once))
        assert (await driver.generate("a", 5)).text
        assert driver.engine.alive

    with Driver(random_model(folder, vocabulary=list(range(256)))) as driver:
        asyncio.run(both(driver))
        assert driver.engine.rows == 0


def test_a_panic_where_a_result_is_delivered_ends_its_own_request(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("lm") / "bytes"

    async def deliver(driver: Driver) -> None:
        loop = asyncio.get_running_loop()
        job = Job(
            kind=JobKind.GENERATE,
            items=[SequenceInput(driver.ids("a"), None)],
            loop=loop,
            deliver=lambda *_: panic(),
            done=loop.create_future(),
            sampling=Sampling(max_tokens=2),
        )
        driver.engine.submit(job)
        async with asyncio.timeout(60):
            with pytest.raises(BaseException, match="retry-limit"):
                await job.done
        assert isinstance(await driver.generate("a", 5), Generated)

    with Driver(random_model(folder, vocabulary=list(range(256)))) as driver:
        asyncio.run(deliver(driver))


def test_requests_to_stop_are_no_faults() -> None:
    for stop in (KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit):
        assert not issubclass(stop, faults())
