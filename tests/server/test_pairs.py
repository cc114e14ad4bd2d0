"""Pairs over HTTP: two inputs through one encoder, in any company."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from sruserve.server.http.responses.classify import ClassifyReply
from tests.server.conftest import Serve
from tests.server.posting import refusal

ONE, OTHER = "How far is it from Denver to Aspen?", "who is it"
BODY = {"model": "pairs", "input": ONE, "pair": OTHER}


def compare(client: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    reply = client.post("/v1/classify", json=BODY | body)
    assert reply.status_code == 200, reply.text
    ClassifyReply.model_validate_json(reply.content, strict=True)
    results: list[dict[str, Any]] = reply.json()["results"]
    return results


def test_a_pair_gets_its_label_with_all_probabilities(tasks: httpx.Client) -> None:
    (result,) = compare(tasks)
    assert result["scores"][result["label"]] == result["score"] == max(result["scores"].values())
    assert sum(result["scores"].values()) == pytest.approx(1, abs=1e-5)
    assert result["state"] is None
    usage = tasks.post("/v1/classify", json=BODY).json()["usage"]
    assert usage == {"steps": len(ONE.split()) + len(OTHER.split())}


def test_both_inputs_count_and_their_order_does(tasks: httpx.Client) -> None:
    (result,) = compare(tasks)
    assert compare(tasks, pair="a b")[0]["scores"] != result["scores"]
    assert compare(tasks, input="a b")[0]["scores"] != result["scores"]
    assert compare(tasks, input=OTHER, pair=ONE)[0]["scores"] != result["scores"]


@pytest.mark.parametrize("model", ["pairs", "pairs-mean", "pairs-attention"])
def test_a_list_of_pairs_gives_what_each_pair_gives_alone(tasks: httpx.Client, model: str) -> None:
    firsts = [ONE, "who", "a b c " * 15, "Denver how", ONE]
    seconds = [OTHER, "a", "to", "who what where when a b c", OTHER]
    together = compare(tasks, model=model, input=firsts, pair=seconds)
    assert together[0] == together[4]
    for one, other, result in zip(firsts, seconds, together, strict=True):
        assert compare(tasks, model=model, input=one, pair=other) == [result]


def test_the_only_model_for_pairs_need_not_be_named(serve: Serve, task_folders: Path) -> None:
    with serve(model_folders=(task_folders / "pairs", task_folders / "tagger")) as (client, _):
        reply = client.post("/v1/classify", json={"input": ONE, "pair": OTHER})
        assert reply.json()["model"] == "pairs"


def test_requests_for_pairs_are_counted_from_zero(tasks: httpx.Client) -> None:
    with_zero = 'sru_request_seconds_count{model="pairs-attention",route="/v1/classify"}'
    assert with_zero in tasks.get("/metrics").text


def test_ids_give_what_their_text_gives(tasks: httpx.Client) -> None:
    by_text = compare(tasks, input="How far", pair="is it")
    assert compare(tasks, input=[1, 2], pair=[3, 4]) == by_text
    assert compare(tasks, input=[[1, 2]], pair=["is it"]) == by_text


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"pair": None}, "invalid_request", "pair"),
        ({"pair": [OTHER, OTHER]}, "invalid_request", "pair"),
        ({"input": [ONE, ONE]}, "invalid_request", "pair"),
        ({"input": None}, "invalid_request", "input"),
        ({"pair": {"text": "a"}}, "invalid_request", "pair"),
        ({"pair": [1, 99]}, "invalid_request", "pair"),
        ({"input": None, "features": [[1.0] * 8]}, "invalid_request", "features"),
        ({"pair": ""}, "empty_input", "pair"),
        ({"pair": []}, "empty_input", "pair"),
        ({"input": " "}, "empty_input", "input"),
        ({"input": ["a", "b"], "pair": ["a", ""]}, "empty_input", "pair"),
        ({"return_state": True}, "cannot_stream", "return_state"),
        ({"more": True}, "cannot_stream", "more"),
        ({"state": "a"}, "cannot_stream", "state"),
        ({"input": "a " * 40, "pair": "b " * 40}, "input_too_long", None),
    ],
    ids=str,
)
def test_what_is_no_pair(tasks: httpx.Client, body: Any, code: str, param: str | None) -> None:
    message = refusal(tasks.post("/v1/classify", json=BODY | body), 422, code, param)
    if code in ("cannot_stream", "input_too_long"):
        assert "compares two whole inputs" in message


def test_a_pair_is_refused_by_a_model_that_reads_one_input(client: httpx.Client) -> None:
    body = {"model": "question", "input": ONE, "pair": OTHER}
    message = refusal(client.post("/v1/classify", json=body), 422, "invalid_request", "pair")
    assert "leave out `pair`" in message
    reply = client.post("/v1/classify", json={"input": ONE, "pair": OTHER})
    refusal(reply, 422, "invalid_request", "model")
