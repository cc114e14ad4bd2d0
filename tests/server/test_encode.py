"""Outputs over HTTP: of features and texts, whole and in chunks."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from sruserve.server.http.responses.encode import EncodeReply
from tests.server.conftest import Serve
from tests.server.posting import refusal

ROWS = [[0.3 * ((i * 7 + j) % 5) - 0.5 for j in range(8)] for i in range(200)]


def encode(client: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    reply = client.post("/v1/encode", json={"model": "encoder"} | body)
    assert reply.status_code == 200, reply.text
    EncodeReply.model_validate_json(reply.content, strict=True)
    assert reply.json()["id"].startswith("enc-")
    results: list[dict[str, Any]] = reply.json()["results"]
    assert reply.json()["usage"]["steps"] == sum(len(result["outputs"]) for result in results)
    return results


@pytest.mark.parametrize("cuts", [[1], [63, 64, 65], [0, 199], list(range(0, 200, 9))], ids=str)
def test_chunks_give_the_outputs_and_the_end_state_of_the_whole(
    tasks: httpx.Client, cuts: list[int]
) -> None:
    (whole,) = encode(tasks, features=ROWS, return_state=True)
    assert [len(row) for row in whole["outputs"]] == [24] * 200
    outputs, state, begin = [], None, 0
    for end in [*cuts, 200]:
        if end == begin == 0:
            continue  # a stream begins with a step
        (part,) = encode(tasks, features=ROWS[begin:end], state=state, more=True)
        outputs += part["outputs"]
        state, begin = part["state"], end
    assert outputs == whole["outputs"]
    after = encode(tasks, features=ROWS[:3], state=state)
    assert after == encode(tasks, features=ROWS[:3], state=whole["state"])


def test_texts_and_ids_are_encoded_by_a_model_that_has_an_embedding(tasks: httpx.Client) -> None:
    texts = ["How far is it", "who", "a b c " * 40]
    together = encode(tasks, model="reader", input=texts)
    assert [len(result["outputs"]) for result in together] == [4, 1, 120]
    assert together == [encode(tasks, model="reader", input=text)[0] for text in texts]
    assert encode(tasks, model="reader", input=[[1, 2, 3, 4]])[0] == together[0]
    (first,) = encode(tasks, model="reader", input="How fa", more=True)
    (last,) = encode(tasks, model="reader", input="r is it", state=first["state"])
    assert first["outputs"] + last["outputs"] == together[0]["outputs"]


def test_a_bidirectional_encoder_takes_whole_inputs(tasks: httpx.Client) -> None:
    (whole,) = encode(tasks, model="both-ways", features=ROWS[:64])
    assert [len(row) for row in whole["outputs"]] == [48] * 64
    body = {"model": "both-ways", "features": ROWS[:4], "return_state": True}
    message = refusal(tasks.post("/v1/encode", json=body), 422, "cannot_stream", "return_state")
    assert "bidirectional" in message


def test_a_reply_is_bounded_and_says_what_to_change(serve: Serve, task_folders: Path) -> None:
    paths = (task_folders / "tagger", task_folders / "reader")
    with serve(model_folders=paths, max_body_bytes=8 * 24 * 10) as (client, _):
        ids = [1] * 10
        assert len(encode(client, model="reader", input=ids)[0]["outputs"]) == 10
        for too_long in ([*ids, 1], [ids, [1]]):
            reply = client.post("/v1/encode", json={"model": "reader", "input": too_long})
            message = refusal(reply, 422, "input_too_long")
            assert f"{11 * 24} numbers" in message
            assert "SRUSERVE_MAX_BODY_BYTES" in message
        assert client.post("/v1/tag", json={"input": [1] * 30}).status_code == 200
        refusal(client.post("/v1/tag", json={"input": [1] * 31}), 422, "input_too_long")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/encode", {"model": "encoder"}, "input"),
        ("/v1/encode", {"model": "encoder", "input": "a"}, "input"),
        ("/v1/encode", {"model": "encoder", "input": [1]}, "input"),
        ("/v1/encode", {"model": "encoder", "features": [[1.0]]}, "features"),
        ("/v1/encode", {"model": "reader", "features": [[1.0] * 8]}, "features"),
        ("/v1/encode", {"model": "reader", "input": [99]}, "input"),
        ("/v1/encode", {"input": "a"}, "model"),
        ("/v1/tag", {"model": "tagger", "features": [[1.0] * 8]}, "features"),
        ("/v1/tag", {"model": "tagger"}, "input"),
        ("/v1/tag", {"model": "tagger", "input": {"a": 1}}, "input"),
        ("/v1/tag", {"model": "tagger", "input": "a", "labels": []}, "labels"),
    ],
)
def test_bad_input(tasks: httpx.Client, path: str, body: Any, param: str) -> None:
    refusal(tasks.post(path, json=body), 422, "invalid_request", param)


def test_inputs_of_two_kinds_are_refused(tasks: httpx.Client) -> None:
    body = {"model": "encoder", "features": [[1.0] * 8], "input": "a"}
    message = refusal(tasks.post("/v1/encode", json=body), 422, "invalid_request", "features")
    assert message == "'input' and 'features' are both set: leave out one of them"


@pytest.mark.parametrize(
    ("path", "model"),
    [("/v1/tag", "encoder"), ("/v1/encode", "tagger"), ("/v1/classify", "tagger"),
     ("/v1/score", "reader"), ("/v1/completions", "pairs")],
)  # fmt: skip
def test_a_model_for_another_task_is_refused(tasks: httpx.Client, path: str, model: str) -> None:
    field = "prompt" if path == "/v1/completions" else "input"
    refusal(tasks.post(path, json={"model": model, field: "a"}), 422, "wrong_task", "model")


def test_a_number_that_is_not_finite_is_refused(tasks: httpx.Client) -> None:
    for bad in ("1e999", "NaN", "1e39"):
        content = '{"model": "encoder", "features": [[' + ",".join([bad] * 8) + "]]}"
        reply = tasks.post("/v1/encode", content=content)
        assert reply.status_code in (400, 422), reply.text
    empty = {"model": "encoder", "features": []}
    refusal(tasks.post("/v1/encode", json=empty), 422, "empty_input", "features")


def test_the_list_of_models_says_the_task_of_each(tasks: httpx.Client) -> None:
    models = {each["id"]: each for each in tasks.get("/v1/models").json()["data"]}
    assert [models[name]["task"] for name in ("tagger", "encoder", "pairs")] == [
        "tag", "encode", "pair",
    ]  # fmt: skip
    for name in ("tagger", "encoder"):
        assert models[name]["streams"]
    for name in ("backwards", "both-ways", "pairs"):
        assert not models[name]["streams"]
