"""Embeddings: OpenAI's client, the definition of a vector, company, chunks and refusals."""

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch

from sruserve.export.onnx.export import export_onnx
from sruserve.model.heads.config import HeadConfig
from sruserve.model.heads.row_layers import ActivationLayer, LinearLayer
from sruserve.server.app import Application
from sruserve.server.http.responses.embed import EmbeddingReply
from tests.server.conftest import LABELS, TEXT, WORDS, Serve, words_vocabulary
from tests.server.keys import ACME, bearer
from tests.server.posting import refusal
from tests.support import save_random_model

TEXTS = [TEXT, "who", "a b c " * 60, "where what when"]
HEADS = {
    "last": HeadConfig(),
    "layered": HeadConfig(
        layers=(
            LinearLayer(type="linear", size=10),
            ActivationLayer(type="activation", function="tanh"),
        )
    ),
    "mean": HeadConfig(pooling="mean"),
    "several": HeadConfig(pooling=("last", "max", "mean")),
}


@pytest.fixture(scope="module")
def embedding(
    serve: Serve, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[httpx.Client, Application]]:
    """Classifiers with all kinds of heads (one of them bidirectional) and encoders."""
    folder = tmp_path_factory.mktemp("embedding")
    words: dict[str, Any] = {"vocabulary": words_vocabulary(), "vocab_size": len(WORDS)}
    for name, head in HEADS.items():
        save_random_model(folder / name, "classify", labels=LABELS, head=head, **words)
    both: dict[str, Any] = {"head": HEADS["several"], "bidirectional": True}
    save_random_model(folder / "whole", "classify", labels=LABELS, **both, **words)
    save_random_model(folder / "reader", "encode", **words)
    save_random_model(folder / "encoder", "encode", input_size=8)
    save_random_model(folder / "both-ways", "encode", bidirectional=True, **words)
    save_random_model(folder / "tagger", "tag", labels=("O", "B-X"), **words)
    export_onnx(folder / "mean", folder / "graph")
    export_onnx(folder / "reader", folder / "reader-graph")
    with serve(models=folder, model_folders=(), max_batch_tokens=190) as running:
        yield running


@pytest.fixture(scope="module")
def connected(embedding: tuple[httpx.Client, Application]) -> Iterator[openai.OpenAI]:
    url = f"{embedding[0].base_url}/v1"
    with openai.OpenAI(base_url=url, api_key="unused", max_retries=0) as client:
        yield client


def embed(client: httpx.Client, **body: Any) -> list[Any]:
    reply = client.post("/v1/embeddings", json=body)
    assert reply.status_code == 200, reply.text
    EmbeddingReply.model_validate_json(reply.content, strict=True)
    data: list[Any] = reply.json()["data"]
    return data


@pytest.mark.parametrize("model", ["mean", "reader"])
def test_openais_client_reads_both_formats_of_a_batch(connected: openai.OpenAI, model: str) -> None:
    answer = connected.embeddings.create(model=model, input=TEXTS)  # the client asks for base64
    numbers = connected.embeddings.create(model=model, input=TEXTS, encoding_format="float")
    assert answer == numbers
    assert (answer.object, answer.model) == ("list", model)
    assert [(each.object, each.index) for each in answer.data] == [
        ("embedding", index) for index in range(len(TEXTS))
    ]
    steps = sum(len(text.split()) for text in TEXTS)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (steps, steps)
    assert {len(each.embedding) for each in answer.data} == {24}


def test_base64_is_little_endian_float32(
    embedding: tuple[httpx.Client, Application],
) -> None:
    (numbers,) = embed(embedding[0], model="mean", input=TEXT)
    (encoded,) = embed(embedding[0], model="mean", input=TEXT, encoding_format="base64")
    raw = base64.b64decode(encoded["embedding"], validate=True)
    assert np.frombuffer(raw, "<f4").tolist() == numbers["embedding"]


def test_token_ids_give_the_vectors_of_their_texts(connected: openai.OpenAI) -> None:
    ids = [[WORDS.index(word) for word in text.split()] for text in TEXTS]
    create = connected.embeddings.create
    texts = create(model="reader", input=TEXTS).data
    assert create(model="reader", input=ids).data == texts
    (alone,) = create(model="reader", input=ids[0]).data
    assert alone == texts[0]


@pytest.mark.parametrize("model", [*HEADS, "whole"])
def test_a_classifiers_vector_is_the_row_that_its_head_reads(
    embedding: tuple[httpx.Client, Application], model: str
) -> None:
    client, application = embedding
    data = embed(client, model=model, input=TEXTS)
    network = application.lifecycle.catalogue.with_states(model).model.network
    vectors = torch.tensor([each["embedding"] for each in data])
    assert vectors.shape[1] == network.pooled_width
    body = {"model": model, "input": TEXTS, "raw_scores": True}
    results = client.post("/v1/classify", json=body).json()["results"]
    scores = [list(result["scores"].values()) for result in results]
    assert network.logits(vectors).tolist() == scores


def test_an_encoders_vector_is_its_last_output(
    embedding: tuple[httpx.Client, Application],
) -> None:
    client = embedding[0]
    body = {"model": "reader", "input": TEXTS}
    results = client.post("/v1/encode", json=body).json()["results"]
    expected = [result["outputs"][-1] for result in results]
    assert [each["embedding"] for each in embed(client, **body)] == expected
    graph = [each["embedding"] for each in embed(client, model="reader-graph", input=TEXTS)]
    np.testing.assert_allclose(graph, expected, atol=1e-4)
    features = {"model": "encoder", "features": [[0.5] * 8, [-0.5] * 8]}
    (encoding,) = client.post("/v1/encode", json=features).json()["results"]
    assert embed(client, **features)[0]["embedding"] == encoding["outputs"][-1]


@pytest.mark.parametrize("model", ["several", "whole", "reader"])
def test_company_changes_no_bit(embedding: tuple[httpx.Client, Application], model: str) -> None:
    client = embedding[0]
    alone = [embed(client, model=model, input=text)[0]["embedding"] for text in TEXTS]
    assert [each["embedding"] for each in embed(client, model=model, input=TEXTS)] == alone

    def ask(index: int) -> list[float]:
        if index % 3 == 0:
            path = "/v1/encode" if model == "reader" else "/v1/classify"
            assert client.post(path, json={"model": model, "input": TEXTS}).is_success
        (data,) = embed(client, model=model, input=TEXTS[index % 4])
        vector: list[float] = data["embedding"]
        return vector

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(64))) == [alone[index % 4] for index in range(64)]


def test_chunks_give_the_vector_and_the_state_of_the_whole(
    embedding: tuple[httpx.Client, Application],
) -> None:
    client = embedding[0]
    (whole,) = embed(client, model="several", input=TEXT, return_state=True)
    (none,) = embed(client, model="several", input="Ho", more=True)
    assert none["embedding"] is None
    (first,) = embed(client, model="several", input="w far is it fr", more=True, **_state(none))
    (last,) = embed(
        client, model="several", input="om Denver to Aspen?", return_state=True, **_state(first)
    )
    assert last["embedding"] == whole["embedding"]
    # the state also has the classes, which a chunk without a step answers with
    ask = {"model": "several", "input": "", **_state(last)}
    (classes,) = client.post("/v1/classify", json=ask).json()["results"]
    ask = {"model": "several", "input": TEXT}
    assert classes == client.post("/v1/classify", json=ask).json()["results"][0]


def _state(result: dict[str, Any]) -> dict[str, str]:
    return {"state": result["state"]}


def test_the_width_is_the_only_number_of_dimensions(connected: openai.OpenAI) -> None:
    create = connected.embeddings.create
    assert len(create(model="several", input=TEXT, dimensions=72, user="me").data) == 1
    with pytest.raises(openai.UnprocessableEntityError, match="72 numbers") as caught:
        create(model="several", input=TEXT, dimensions=24)
    assert (caught.value.code, caught.value.param) == ("invalid_request", "dimensions")


@pytest.mark.parametrize(
    ("body", "code", "param", "because"),
    [
        ({"model": "tagger", "input": TEXT}, "wrong_task", "model", "tagger"),
        ({"model": "both-ways", "input": TEXT}, "invalid_request", "model", "both directions"),
        ({"model": "graph", "input": TEXT}, "invalid_request", "model", "scores alone"),
        ({"model": "mean"}, "invalid_request", "input", "missing"),
        ({"model": "mean", "input": []}, "empty_input", "input", "empty"),
        ({"model": "mean", "input": [[99]]}, "invalid_request", "input", "99"),
        ({"model": "encoder", "input": TEXT}, "invalid_request", "input", "`features`"),
        (
            {"model": "mean", "input": TEXT, "encoding_format": "int8"},
            "invalid_request", "encoding_format", "base64",
        ),
    ],
)  # fmt: skip
def test_a_model_or_a_field_that_does_not_fit_is_refused_by_name(
    embedding: tuple[httpx.Client, Application],
    body: dict[str, Any],
    code: str,
    param: str,
    because: str,
) -> None:
    message = refusal(embedding[0].post("/v1/embeddings", json=body), 422, code, param)
    assert because in message


def test_vectors_count_for_the_rate_of_their_key(serve: Serve) -> None:
    keys = json.dumps([{"key": ACME, "steps_per_second": 1}])
    with serve("question", api_keys=keys) as (client, _):
        body = {"input": TEXT}  # 8 steps
        assert client.post("/v1/embeddings", json=body).status_code == 401
        assert client.post("/v1/embeddings", json=body, headers=bearer(ACME)).is_success
        refusal(client.post("/v1/embeddings", json=body, headers=bearer(ACME)), 429, "rate_limited")
