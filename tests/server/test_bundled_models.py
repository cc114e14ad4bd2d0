"""Serving loses nothing: over HTTP the bundled models are as good as in the library that made them.

`tests/data/reference/` holds what `examples/evaluate.py` measured with `sru` 2.6.0 for the same
weights, one sequence at a time and without padding; of the translator, the errors that
`examples/train_translate.py` found in all held-out sentences.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.translation_data import held_out
from sruserve.server.tasks.translate_request import TranslateRequest
from tests.server.processes import serving
from tests.server.websocket.sockets import SECONDS, open_socket

DATA = Path(__file__).parent.parent / "data"
QUESTIONS = [line.split(" ", 1) for line in (DATA / "trec.test").read_text().splitlines()]
LABELS = ("description", "entity", "abbreviation", "human", "location", "number")
SENTENCES = [line.split(" ", 1) for line in (DATA / "sst.test").read_text().splitlines()]
MARK = re.compile(r"\[([^]]+)\]\((\w+)\)")
MARKED = (DATA / "entities.txt").read_text().splitlines()
MAX_INPUTS = 1024  # in a request


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A server as `make serve` starts it: without arguments."""
    with serving() as (client, _):
        yield client


def reference(model: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((DATA / "reference" / f"{model}.json").read_text())
    return figures


def labels(client: httpx.Client, model: str, texts: list[str]) -> list[str]:
    classes = list[str]()
    for first in range(0, len(texts), MAX_INPUTS):
        body = {"model": model, "input": texts[first : first + MAX_INPUTS]}
        reply = client.post("/v1/classify", json=body)
        classes += [result["label"] for result in reply.json()["results"]]
    return classes


def tagged(client: httpx.Client, **body: Any) -> dict[str, Any]:
    reply = client.post("/v1/tag", json={"model": "entities"} | body)
    assert reply.status_code == 200, reply.text
    result: dict[str, Any] = reply.json()["results"][0]
    return result


def spans(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(span["text"], span["label"]) for span in result["spans"]]


def test_the_classifier_gets_as_many_questions_right_as_in_the_library(
    client: httpx.Client,
) -> None:
    predicted = labels(client, "question-type", [text for _, text in QUESTIONS])
    right = sum(label == LABELS[int(y)] for label, (y, _) in zip(predicted, QUESTIONS, strict=True))
    assert len(predicted) == 500
    assert right == reference("question-type")["correct"]
    assert right / len(predicted) >= 0.87


def test_the_sentiment_of_as_many_sentences_is_right_as_in_the_library(
    client: httpx.Client,
) -> None:
    predicted = labels(client, "sentiment", [text for _, text in SENTENCES])
    names = ("negative", "positive")
    right = sum(label == names[int(y)] for label, (y, _) in zip(predicted, SENTENCES, strict=True))
    assert len(predicted) == 1821
    assert right == reference("sentiment")["correct"]
    assert right / len(predicted) >= 0.8


def test_as_many_spans_are_found_as_in_the_library(client: httpx.Client) -> None:
    body = {"model": "entities", "input": [MARK.sub(r"\1", line) for line in MARKED]}
    results = client.post("/v1/tag", json=body).json()["results"]
    entities, marks = map(spans, results), map(MARK.findall, MARKED)
    pairs = [(set(ours), set(theirs)) for ours, theirs in zip(entities, marks, strict=True)]
    right = sum(len(ours & theirs) for ours, theirs in pairs)
    marked, expected_count = (sum(map(len, side)) for side in zip(*pairs, strict=True))
    expected = reference("entities")
    assert len(results) == expected["texts"]
    assert (right, marked, expected_count) == (
        expected["right"], expected["marked"], expected["wanted"],
    )  # fmt: skip
    assert 2 * right / (marked + expected_count) >= 0.9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("See you in Lisbon on 12 March.", [("Lisbon", "place"), ("12 March", "date")]),
        ("It costs $3.50 until noon.", [("$3.50", "money"), ("noon", "time")]),
        ("Write to ada@example.org.", [("ada@example.org", "email")]),
        ("Call +44 20 7946 0321 now.", [("+44 20 7946 0321", "phone")]),
        ("Ada Lovelace lived in London.", [("London", "place")]),
        ("We may meet 12 people in room 404.", []),
    ],
    ids=["place-date", "money-time", "email", "phone", "name", "nothing"],
)
def test_the_tagger_marks_what_it_promises(
    client: httpx.Client, text: str, expected: list[tuple[str, str]]
) -> None:
    assert spans(tagged(client, input=text)) == expected


@pytest.mark.parametrize("size", [1, 7])
def test_chunks_have_the_labels_of_the_whole_text(client: httpx.Client, size: int) -> None:
    text = "Zo\u00eb paid \u20ac80 in Z\u00fcrich on 12 March at half past nine, zoe@example.org."
    state, labelled = None, list[tuple[str, float]]()
    for first in range(0, len(text), size):
        more = first + size < len(text)
        chunk = text[first : first + size]
        result = tagged(client, input=chunk, state=state, more=more)
        labelled += [(token["label"], token["score"]) for token in result["tokens"]]
        state = result["state"]
    whole = tagged(client, input=text)
    assert labelled == [(token["label"], token["score"]) for token in whole["tokens"]]
    assert len(whole["spans"]) == 5


def test_the_translator_writes_what_its_module_wrote(client: httpx.Client) -> None:
    expected, errors = dict[str, str](), reference("numbers")
    for kind, pairs in held_out().items():
        record = errors[kind]
        assert record["sentences"] == len(pairs)
        assert len(record["wrong"]) <= 0.01 * len(pairs)
        expected |= dict(pairs[:: len(pairs) // 50]) | record["wrong"]  # all would take a minute
    body = {"input": list(expected), "beam_size": 1}
    reply = client.post("/v1/translate", json=body).json()
    assert reply["model"] == "numbers"  # which needs no name
    assert [result["text"] for result in reply["results"]] == list(expected.values())


def test_documented_translations_work(client: httpx.Client) -> None:
    for example in TranslateRequest.model_json_schema()["examples"]:
        reply = client.post("/v1/translate", json=example)
        assert reply.status_code == 200, reply.text
        written = "vierhundert" in reply.text or "four hundred" in reply.text
        assert written or "more" in example


def test_a_request_that_names_no_model_gets_the_classifier_of_questions(
    client: httpx.Client,
) -> None:
    reply = client.post("/v1/classify", json={"input": "Who wrote Hamlet?"}).json()
    assert (reply["model"], reply["results"][0]["label"]) == ("question-type", "human")
    with open_socket(client) as socket:
        socket.send(json.dumps({"input": "Who wrote Hamlet?"}))
        message = json.loads(socket.recv(SECONDS))["error"]["message"]
    assert "choose among entities, question-type, sentiment, shakespeare" in message


def test_the_language_model_predicts_the_last_tenth_as_well_as_in_the_library(
    client: httpx.Client,
) -> None:
    tail = (DATA / "shakespeare.tail").read_text()
    reply = client.post("/v1/score", json={"model": "shakespeare", "input": tail}).json()
    (result,) = reply["results"]
    expected = reference("shakespeare")
    assert result["characters"] == len(tail) - 1 == expected["characters"]
    assert result["log_likelihood"] == pytest.approx(expected["log_likelihood"], rel=1e-5)
    assert result["bits_per_character"] == pytest.approx(expected["bits_per_character"], rel=1e-5)
    assert result["bits_per_character"] <= 2.1


@pytest.mark.parametrize(
    ("typed", "spaced"),
    [
        ("How far is it from Denver to Aspen?", "How far is it from Denver to Aspen ?"),
        ("What's the capital of Yugoslavia?", "What 's the capital of Yugoslavia ?"),
        ('Who wrote "Hamlet"?', "Who wrote `` Hamlet '' ?"),
        ("who wrote “Hamlet”?", "Who wrote `` Hamlet '' ?"),
    ],
)
def test_text_as_people_type_it_is_text_as_the_corpus_spells_it(
    client: httpx.Client, typed: str, spaced: str
) -> None:
    request = {"model": "question-type", "input": [typed, spaced]}
    first, second = client.post("/v1/classify", json=request).json()["results"]
    assert first["scores"] == second["scores"]
