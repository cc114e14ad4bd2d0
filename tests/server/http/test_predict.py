"""`/predict` as clients of text-embeddings-inference use it."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.server.conftest import LABELS, Serve

PATH = "/predict?model=question"
TEXTS = ["How far is it", "who", "a b c"]


def predict(client: httpx.Client, path: str = PATH, **body: Any) -> Any:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def ranked(client: httpx.Client, **body: Any) -> list[list[dict[str, Any]]]:
    """What `/v1/classify` says, in the shape of `/predict`."""
    reply = client.post("/v1/classify", json=body)
    assert reply.status_code == 200, reply.text
    return [
        [
            {"score": score, "label": label}
            for label, score in sorted(each["scores"].items(), key=lambda entry: -entry[1])
        ]
        for each in reply.json()["results"]
    ]


def error(reply: httpx.Response, status: int, kind: str) -> str:
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert set(body) == {"error", "error_type"}
    assert body["error_type"] == kind
    return str(body["error"])


def test_a_text_gets_its_labels_the_likeliest_first(client: httpx.Client) -> None:
    (expected,) = ranked(client, model="question", input=TEXTS[0])
    labels = predict(client, inputs=TEXTS[0])
    assert labels == expected
    assert {each["label"] for each in labels} == set(LABELS)
    assert labels[0]["score"] == max(each["score"] for each in labels)


def test_a_batch_gets_a_list_for_each(client: httpx.Client) -> None:
    expected = ranked(client, model="question", input=TEXTS)
    assert predict(client, inputs=[[text] for text in TEXTS]) == expected
    assert predict(client, inputs=TEXTS) == expected
    assert predict(client, inputs=[[TEXTS[0]]]) == expected[:1]


def test_raw_scores_are_the_logits(client: httpx.Client) -> None:
    plain, raw = predict(client, inputs=TEXTS[0]), predict(client, inputs=TEXTS[0], raw_scores=True)
    assert [each["label"] for each in raw] == [each["label"] for each in plain]
    logits = np.array([each["score"] for each in raw])
    assert abs(np.log(np.exp(logits).sum())) > 0.01  # they are not log-probabilities
    softmax = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(softmax, [each["score"] for each in plain], rtol=1e-5)


def test_pairs(tasks: httpx.Client) -> None:
    path = "/predict?model=pairs"
    expected = ranked(tasks, model="pairs", input=["who", "How far"], pair=["a b", "is it"])
    assert predict(tasks, path, inputs=["who", "a b"]) == expected[0]
    assert predict(tasks, path, inputs=[["who", "a b"], ["How far", "is it"]]) == expected
    for wrong in ("who", [["who"]], ["who", "a", "b"], [["who", "a"], ["b"]]):
        assert "[text, text]" in error(tasks.post(path, json={"inputs": wrong}), 422, "validation")


def test_the_only_classifier_need_not_be_named(
    serve: Serve, client: httpx.Client, folders: Path
) -> None:
    del folders
    with serve("question", "characters") as (only, _):
        assert predict(only, "/predict", inputs=TEXTS[0]) == predict(client, inputs=TEXTS[0])
    message = error(client.post("/predict", json={"inputs": "who"}), 422, "validation")
    assert "choose among question, sensor, whole" in message
    error(client.post("/predict?model=nobody", json={"inputs": "who"}), 404, "validation")
    error(client.post("/predict?model=characters", json={"inputs": "who"}), 422, "validation")


@pytest.mark.parametrize("side", ["Right", "Left"])
def test_a_long_text_is_cut_only_on_request(serve: Serve, side: str) -> None:
    text = "who what where when " * 5
    with serve("question", "whole", max_input_bytes=24, max_batch_tokens=4) as (client, _):
        long = {"inputs": text, "truncation_direction": side}
        error(client.post(PATH, json=long), 422, "validation")
        truncated = text[:24] if side == "Right" else text[-24:]
        (expected,) = ranked(client, model="question", input=truncated)
        assert predict(client, **long, truncate=True) == expected
        ids = {"inputs": "a b c a b c", "truncation_direction": side}
        whole = "/predict?model=whole"
        error(client.post(whole, json=ids), 422, "validation")
        truncated = "a b c a" if side == "Right" else "c a b c"
        (expected,) = ranked(client, model="whole", input=truncated)
        assert predict(client, whole, **ids, truncate=True) == expected


def test_a_pair_that_is_too_long_loses_from_its_longer_text(
    serve: Serve, task_folders: Path
) -> None:
    with serve(model_folders=(task_folders / "pairs",), max_batch_tokens=6) as (client, _):
        body = {"inputs": ["a b", "who what where when who what"], "truncate": True}
        (expected,) = ranked(client, input="a b", pair="who what where when")
        assert predict(client, "/predict", **body) == expected


@pytest.mark.parametrize(
    ("body", "status", "kind", "message"),
    [
        ({}, 422, "validation", "'inputs' is missing"),
        ({"inputs": []}, 422, "validation", "send a text, a pair of texts"),
        ({"inputs": 3}, 422, "validation", "send a text, a pair of texts"),
        ({"inputs": [["a"], "b"]}, 422, "validation", "send a text, a pair of texts"),
        ({"inputs": [["a", "b", "c"]]}, 422, "validation", "send a text, a pair of texts"),
        ({"inputs": [["a", 1]]}, 422, "validation", "send a text, a pair of texts"),
        ({"inputs": [["a", "b"]]}, 422, "validation", "one text at a time"),
        ({"inputs": "a", "raw_scores": 1}, 422, "validation", "'raw_scores'"),
        ({"inputs": "a", "truncation_direction": "Up"}, 422, "validation", "truncation_direction"),
        ({"inputs": "a", "input": "a"}, 422, "validation", "did you mean 'inputs'?"),
        ({"inputs": " "}, 422, "empty", "nothing to read"),
        pytest.param(
            {"inputs": ["a"] * 1025}, 422, "validation", "'inputs' has 1025 entries", id="too-many"
        ),
    ],
    ids=str,
)
def test_bad_input(client: httpx.Client, body: Any, status: int, kind: str, message: str) -> None:
    assert message in error(client.post(PATH, json=body), status, kind)


def test_a_body_that_is_not_json_and_a_missing_key(serve: Serve, client: httpx.Client) -> None:
    error(client.post(PATH, content=b"{"), 400, "validation")
    with serve("question", api_keys="acme:key-of-acme") as (closed, _):
        error(closed.post(PATH, json={"inputs": "a"}), 401, "validation")
    assert client.get(PATH).status_code == 405
