"""ONNX files behind the server: the routes, streams and tokens of a model folder."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from torch import Tensor

from sruserve.export.onnx.export import export_onnx
from sruserve.export.quantize.quantize import quantize
from sruserve.export.runtime.model import load_onnx
from sruserve.export.runtime.network import MAX_STEP_NUMBERS, OnnxNetwork
from sruserve.kernels import RaggedBatch
from sruserve.kernels.devices import CPU
from sruserve.model.heads.config import HeadConfig
from sruserve.server.engine.results import Scored
from sruserve.server.repository.loader import engine_config
from sruserve.server.settings import load_settings
from tests.server.conftest import CHARACTERS, TAGS, WORDS, Serve, words_vocabulary
from tests.server.engine.driver import Driver
from tests.support import save_random_model

QUESTION = "who wrote the play"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `native` with models, and the folder `onnx` with their ONNX files."""
    parent = tmp_path_factory.mktemp("portable")
    words: dict[str, Any] = {"vocabulary": words_vocabulary(), "vocab_size": len(WORDS)}
    native = parent / "native"
    save_random_model(native / "characters", "generate", vocabulary=CHARACTERS)
    save_random_model(
        native / "question", "classify", labels=("a", "b"), head=HeadConfig(pooling="mean"), **words
    )
    save_random_model(native / "tagger", "tag", labels=TAGS, **words)
    save_random_model(native / "encoder", "encode", input_size=8)
    save_random_model(native / "pairs", "pair", labels=("same", "other"), **words)
    quantize(native / "characters", native / "small", "int8")
    for folder in native.iterdir():
        export_onnx(folder, parent / "onnx" / folder.name)
    return parent


@pytest.fixture(scope="module")
def both(serve: Serve, models: Path) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Clients of two servers with one key of state tokens: of the kernels, and of ONNX Runtime."""
    settings: dict[str, Any] = {"model_folders": (), "state_keys": "a" * 64}
    with (
        serve(models=models / "native", **settings) as (native, _),
        serve(models=models / "onnx", **settings) as (onnx, _),
    ):
        yield native, onnx


def post(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def without_costs(value: Any) -> Any:
    """A reply without ids, times and tokens; numbers of both engines agree to some digits."""
    if isinstance(value, dict):
        unlike = ("id", "created", "state", "usage")
        return {key: without_costs(v) for key, v in value.items() if key not in unlike}
    if isinstance(value, list):
        return [without_costs(part) for part in value]
    return pytest.approx(value, abs=1e-4) if isinstance(value, float) else value


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "classify": ("/v1/classify", {"model": "question", "input": [QUESTION, "what"]}),
    "tag": ("/v1/tag", {"model": "tagger", "input": QUESTION}),
    "encode": ("/v1/encode", {"model": "encoder", "features": [[0.1] * 8, [0.5] * 8]}),
    "pair": (
        "/v1/classify",
        {"model": "pairs", "input": QUESTION, "pair": "what is the play"},
    ),
    "completions": (
        "/v1/completions",
        {"model": "characters", "prompt": "To be", "max_tokens": 40, "seed": 7, "logprobs": 2},
    ),
    "score": ("/v1/score", {"model": "characters", "input": "To be, or not"}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_every_route_answers_as_with_the_kernels(
    both: tuple[httpx.Client, httpx.Client], name: str
) -> None:
    path, body = REQUESTS[name]
    native, onnx = (post(client, path, **body) for client in both)
    assert without_costs(native) == without_costs(onnx)


def test_a_state_token_continues_with_either_engine(
    both: tuple[httpx.Client, httpx.Client],
) -> None:
    whole = post(both[0], "/v1/classify", model="question", input=QUESTION + " now")["results"][0]
    for first, second in (both, both[::-1]):
        begun = post(first, "/v1/classify", model="question", input="who wrote ", return_state=True)
        state = begun["results"][0]["state"]
        rest = post(second, "/v1/classify", model="question", input="the play now", state=state)
        assert rest["results"][0]["label"] == whole["label"]
        assert rest["results"][0]["score"] == pytest.approx(whole["score"], abs=1e-4)


def test_a_state_token_of_int8_weights_continues_with_either_engine(
    both: tuple[httpx.Client, httpx.Client],
) -> None:
    whole = post(both[0], "/v1/score", model="small", input="To be, or not")["results"][0]
    for first, second in (both, both[::-1]):
        begun = post(first, "/v1/score", model="small", input="To be,", more=True)["results"][0]
        rest = post(second, "/v1/score", model="small", input=" or not", state=begun["state"])
        total = begun["log_likelihood"] + rest["results"][0]["log_likelihood"]
        assert total == pytest.approx(whole["log_likelihood"], rel=0.01)
    of_floats = {"model": "characters", "input": "a", "state": begun["state"]}
    reply = both[1].post("/v1/score", json=of_floats)
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "state_wrong_model")


def test_a_held_stream_generates_on(both: tuple[httpx.Client, httpx.Client]) -> None:
    texts = []
    for client in both:
        created = client.post("/v1/streams", json={"model": "characters"})
        path = f"/v1/streams/{created.json()['id']}/steps"
        texts.append(
            [
                post(client, path, step=step, prompt=prompt, max_tokens=9, seed=3)["choices"]
                for step, prompt in enumerate(("To be", ", or not"), 1)
            ]
        )
    assert without_costs(texts[0]) == without_costs(texts[1])


def test_a_model_says_that_onnx_runtime_computes_it(
    both: tuple[httpx.Client, httpx.Client],
) -> None:
    native, onnx = (client.get("/v1/models").json()["data"] for client in both)
    digests = [{model["id"]: model.get("digest") for model in models} for models in (native, onnx)]
    assert digests[0] == digests[1]


def test_a_reload_takes_the_runtime_of_the_newest_version(
    serve: Serve, models: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "models" / "question"
    shutil.copytree(models / "native" / "question", folder / "1")
    settings: dict[str, Any] = {"model_folders": (), "model_control": True}
    with serve(models=tmp_path / "models", **settings) as (client, application):
        kernels = []
        for version, source in (("2", "onnx"), ("3", "native")):
            shutil.copytree(models / source / "question", folder / version)
            assert client.post("/v2/repository/models/question/load").status_code == 200
            served = application.lifecycle.catalogue.with_states("question").model
            assert served.version == version
            kernels.append(served.network.kernel)
    assert kernels[0].startswith("ONNX Runtime")
    assert not kernels[1].startswith("ONNX Runtime")


def test_the_scores_of_a_step_are_bounded(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, rows = OnnxNetwork.hidden, []

    def spy(
        network: OnnxNetwork, inputs: Tensor, batch: RaggedBatch, output_rows: Tensor | None = None
    ) -> Tensor:
        answers = hidden(network, inputs, batch, output_rows)
        rows.append(len(answers))
        return answers

    def score(max_step_numbers: int) -> Scored:
        folder = models / "onnx" / "characters"
        model = load_onnx(folder, None, CPU, False, 1, max_step_numbers)
        config = engine_config(load_settings(state_pool_bytes=1 << 20), model)
        with Driver(model, config) as driver:
            return asyncio.run(driver.score("how far is it from here"))

    whole = score(MAX_STEP_NUMBERS)
    monkeypatch.setattr(OnnxNetwork, "hidden", spy)
    parts = score(7 * len(CHARACTERS))
    assert rows[-4:] == [7, 7, 7, 1]  # after those of the warm-up
    assert parts.log_likelihood == pytest.approx(whole.log_likelihood, abs=1e-4)
