"""Serving loses nothing: over HTTP the bundled models are as good as in the library that made them.

`tests/data/reference/` holds what `examples/evaluate.py` measured with `sru` 2.6.0 for the same
weights, one sequence at a time and without padding.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.processes import serving

DATA = Path(__file__).parent.parent / "data"
QUESTIONS = [line.split(" ", 1) for line in (DATA / "trec.test").read_text().splitlines()]
LABELS = ("description", "entity", "abbreviation", "human", "location", "number")


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A server as `make serve` starts it: without arguments."""
    with serving() as (client, _):
        yield client


def reference(model: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((DATA / "reference" / f"{model}.json").read_text())
    return figures


def labels(client: httpx.Client, questions: list[str]) -> list[str]:
    reply = client.post("/v1/classify", json={"model": "question-type", "input": questions})
    return [result["label"] for result in reply.json()["results"]]


def test_the_classifier_gets_as_many_questions_right_as_in_the_library(
    client: httpx.Client,
) -> None:
    predicted = labels(client, [text for _, text in QUESTIONS])
    right = sum(label == LABELS[int(y)] for label, (y, _) in zip(predicted, QUESTIONS, strict=True))
    assert len(predicted) == 500
    assert right == reference("question-type")["correct"]
    assert right / len(predicted) >= 0.87


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
