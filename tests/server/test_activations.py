"""A head's activation holds in every route and protocol: softmax, sigmoid, or none."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import tritonclient.http as triton
from numpy.typing import NDArray

from sruserve.model.folder import load_model
from sruserve.model.heads.config import HeadConfig
from tests.server.conftest import CHARACTERS, LABELS, Serve
from tests.support import save_random_model

TEXT = "To be"
ACTIVATIONS = pytest.mark.parametrize("activation", ["softmax", "sigmoid", "none"])
Values = NDArray[np.float32]


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that differ in their activation only, for tasks classify, pair and tag."""
    parent = tmp_path_factory.mktemp("activations")
    for activation in ("softmax", "sigmoid", "none"):
        for task in ("classify", "pair", "tag"):
            head = HeadConfig.model_validate({"activation": activation})
            save_random_model(
                parent / f"{task}-{activation}",
                task,
                labels=LABELS,
                vocabulary=CHARACTERS,
                head=head,
            )
    head = HeadConfig(activation="sigmoid")
    save_random_model(
        parent / "spam", "classify", labels=("spam",), vocabulary=CHARACTERS, head=head
    )
    return parent


@pytest.fixture(scope="module")
def server(serve: Serve, parent: Path) -> Iterator[httpx.Client]:
    with serve(models=parent, model_folders=()) as (client, _):
        yield client


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    reply = client.post(path, json=body)
    assert reply.is_success, reply.text
    return reply.json()


def activated(activation: str, logits: Values) -> Values:
    if activation == "softmax":
        values = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    else:
        values = 1 / (1 + np.exp(-logits)) if activation == "sigmoid" else logits
    return np.asarray(values, np.float32)


def logits_of(client: httpx.Client, name: str, **body: Any) -> Values:
    """The network's own scores, which the activation does not change."""
    raw = post(client, "/v1/classify", model=name, raw_scores=True, **body)["results"][0]
    same = post(client, "/v1/classify", model=f"{name.split('-')[0]}-softmax", **body)
    assert raw["label"] == same["results"][0]["label"]  # the same weights
    return np.array(list(raw["scores"].values()), np.float32)


@ACTIVATIONS
def test_classify(server: httpx.Client, activation: str) -> None:
    name = f"classify-{activation}"
    expected = activated(activation, logits_of(server, name, input=TEXT))
    result = post(server, "/v1/classify", model=name, input=TEXT)["results"][0]
    np.testing.assert_allclose(list(result["scores"].values()), expected, atol=1e-6)
    assert result["score"] == max(result["scores"].values()) == result["scores"][result["label"]]


@ACTIVATIONS
def test_pairs(server: httpx.Client, activation: str) -> None:
    name = f"pair-{activation}"
    expected = activated(activation, logits_of(server, name, input=TEXT, pair="or not"))
    result = post(server, "/v1/classify", model=name, input=TEXT, pair="or not")["results"][0]
    np.testing.assert_allclose(list(result["scores"].values()), expected, atol=1e-6)


@ACTIVATIONS
def test_predict(server: httpx.Client, activation: str) -> None:
    name = f"classify-{activation}"
    raw = logits_of(server, name, input=TEXT)
    ranked = post(server, f"/predict?model={name}", inputs=TEXT)
    by_label = {each["label"]: each["score"] for each in ranked}
    expected = activated(activation, raw)
    np.testing.assert_allclose([by_label[label] for label in LABELS], expected, atol=1e-6)
    assert [each["score"] for each in ranked] == sorted(by_label.values(), reverse=True)
    unchanged = post(server, f"/predict?model={name}", inputs=TEXT, raw_scores=True)
    scores = {each["label"]: each["score"] for each in unchanged}
    assert [scores[label] for label in LABELS] == raw.tolist()


@ACTIVATIONS
def test_kserve(server: httpx.Client, activation: str) -> None:
    name = f"classify-{activation}"
    expected = activated(activation, logits_of(server, name, input=TEXT))
    tensor = triton.InferInput("text", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[TEXT.encode()]], object))
    with triton.InferenceServerClient(server.base_url.netloc.decode()) as client:
        reply = client.infer(name, [tensor])
    np.testing.assert_allclose(reply.as_numpy("scores")[0], expected, atol=1e-6)


@ACTIVATIONS
def test_a_held_stream(server: httpx.Client, activation: str) -> None:
    name = f"classify-{activation}"
    expected = activated(activation, logits_of(server, name, input=TEXT))
    stream = post(server, "/v1/streams", model=name)["id"]
    for step, (chunk, more) in enumerate([(TEXT[:2], True), (TEXT[2:], False)], 1):
        path = f"/v1/streams/{stream}/steps"
        result = post(server, path, step=step, input=chunk, more=more)["results"][0]
    np.testing.assert_allclose(list(result["scores"].values()), expected, atol=1e-6)


@ACTIVATIONS
def test_tags(server: httpx.Client, parent: Path, activation: str) -> None:
    model = load_model(parent / f"tag-{activation}")
    assert model.codec is not None
    ids = torch.from_numpy(model.codec.encode(TEXT)[0])
    from sruserve.kernels import single

    hidden = model.network.hidden(ids, single(model.network.layout.allocate(1), len(ids)))
    expected = activated(activation, model.network.logits(hidden).numpy())
    tokens = post(server, "/v1/tag", model=f"tag-{activation}", input=TEXT)["results"][0]["tokens"]
    assert [token["label"] for token in tokens] == [LABELS[i] for i in expected.argmax(1)]
    np.testing.assert_allclose([token["score"] for token in tokens], expected.max(1), atol=1e-6)


def test_one_label_of_its_own(server: httpx.Client) -> None:
    result = post(server, "/v1/classify", model="spam", input=TEXT)["results"][0]
    assert (result["label"], list(result["scores"])) == ("spam", ["spam"])
    assert 0 < result["score"] < 1


@pytest.mark.parametrize("activation", ["sigmoid", "none"])
def test_scores_that_are_not_finite_are_refused(
    serve: Serve, tmp_path: Path, activation: str
) -> None:
    head = HeadConfig.model_validate({"activation": activation})
    folder = save_random_model(
        tmp_path / "huge", "classify", labels=LABELS, input_size=8, head=head
    )
    with serve(model_folders=(folder,), models=None) as (client, _):
        body = {"features": [[3e38, -3e38] * 4]}
        reply = client.post("/v1/classify", json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (422, "not_finite")
        raw = client.post("/v1/classify", json={**body, "raw_scores": True})
        assert (raw.status_code, raw.json()["error"]["code"]) == (422, "not_finite")
