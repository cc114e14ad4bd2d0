"""Answers over HTTP: spans of a context, in any company, and what is no question."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from sruserve.check.findings import Verdict
from sruserve.check.session import Options, check_server
from sruserve.model.reader.spans import best_spans
from sruserve.model.reader.words import Document
from sruserve.server.http.responses.answer import AnswerReply
from sruserve.server.repository.encoding import locate_input
from tests.model.reader.formulas import Pair, scores
from tests.readers import WORDS, reader_config, save_reader
from tests.server.conftest import Serve
from tests.server.kserve.conftest import grpc_address
from tests.server.kserve.grpc_inputs import texts as grpc_texts
from tests.server.kserve.support import connected, refused, texts, values_of
from tests.server.posting import refusal
from tests.support import random_tensors

TAGGED: dict[str, Any] = {
    "family": "lstm",
    "features": ("in_question", "in_question_lemma", "tf", "ner=PER"),
    "inputs": ("words", "features", "aligned", "pos"),
    "pos": {"labels": ("NN", "VB"), "size": 3},
    "concat_layers": False,
}
CONTEXT = "Ada lives in Lisbon.  Ben lives in café Porto!"
QUESTION = "Where does ada live?"
BODY = {"model": "reader", "question": QUESTION, "context": CONTEXT}
WORDS_OF_CONTEXT = ["Ada", "lives", "in", "Lisbon", ".", "Ben"]
FEATURES = {
    "lemmas": ["Ada", "live", "in", "Lisbon", ".", "Ben"],
    "pos": ["NN", "VB", "VB", "NN", "VB", "NN"],
    "ner": ["PER", "O", "O", "LOC", "O", "PER"],
    "question_lemmas": ["live", "Ben"],
}
WITH_FEATURES = {
    "model": "tagged", "question": [["lives", "Ben"]], "context": [WORDS_OF_CONTEXT],
    "features": FEATURES,
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(
    serve: Serve, folders: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("readers")
    served = [
        folders / "question",
        save_reader(folder / "reader"),
        save_reader(folder / "uncased", uncased=True, inputs=("words", "features")),
        save_reader(folder / "tagged", **TAGGED),
    ]
    limits = {"max_inputs": 9, "max_batch_tokens": 300, "max_input_bytes": 5000}
    with serve(model_folders=served, grpc_port=0, **limits) as (client, application):
        client.headers["grpc-address"] = grpc_address(application)
        yield client


def ask(client: httpx.Client, **body: Any) -> list[list[dict[str, Any]]]:
    reply = client.post("/v1/answer", json=BODY | body)
    assert reply.status_code == 200, reply.text
    AnswerReply.model_validate_json(reply.content, strict=True)
    return [result["answers"] for result in reply.json()["results"]]


def spans_of(
    options: dict[str, Any], words: list[str], question: list[str], features: list[list[float]],
    count: int, pos: list[int] | None = None,
) -> list[tuple[int, int, float]]:  # fmt: skip
    """The best spans by the formulas."""
    config = reader_config(**options)

    def ids(of: list[str]) -> torch.Tensor:
        return torch.tensor([WORDS.index(word) if word in WORDS else 1 for word in of])

    tags = {} if pos is None else {"pos": torch.tensor(pos)}
    pair = Pair(ids(words), ids(question), torch.tensor(features), tags)
    starts, ends = scores(config, random_tensors(config), pair).softmax(0).T.numpy()
    return best_spans(starts, ends, 15, count)


def test_an_answer_is_the_best_span_of_the_formulas_with_its_place(answers: httpx.Client) -> None:
    words = ["Ada", "lives", "in", "Lisbon", ".", "Ben", "lives", "in", "cafe\u0301", "Porto", "!"]
    # in_question, in_question_uncased, tf
    features = [[0.0, float(word == "Ada"), words.count(word) / len(words)] for word in words]
    question = ["Where", "does", "ada", "live", "?"]
    expected = spans_of({}, words, question, features, 3)
    (spans,) = ask(answers, n_best=3)
    begins = [0, 4, 10, 13, 19, 22, 26, 32, 35, 40, 45]
    ends = [3, 9, 12, 19, 20, 25, 31, 34, 39, 45, 46]
    for answer, (first, last, score) in zip(spans, expected, strict=True):
        assert (answer["start"], answer["end"]) == (begins[first], ends[last])
        assert answer["text"] == CONTEXT[answer["start"] : answer["end"]]
        assert answer["score"] == pytest.approx(score, abs=1e-5)
    usage = answers.post("/v1/answer", json=BODY).json()["usage"]
    assert usage == {"steps": len(words) + len(question)}


def test_words_come_as_lists_with_lemmas_and_tags(answers: httpx.Client) -> None:
    # in_question, in_question_lemma, tf, ner=PER
    columns = ([0, 1, 0, 0, 0, 1], [0, 1, 0, 0, 0, 1], [1 / 6] * 6, [1, 0, 0, 0, 0, 1])
    features = [list(map(float, row)) for row in zip(*columns, strict=True)]
    expected = spans_of(TAGGED, WORDS_OF_CONTEXT, ["lives", "Ben"], features, 4, [0, 1, 1, 0, 1, 0])
    (spans,) = ask(answers, **WITH_FEATURES, n_best=4)
    for answer, (first, last, score) in zip(spans, expected, strict=True):
        assert (answer["start"], answer["end"]) == (first, last + 1)
        assert answer["text"] == " ".join(WORDS_OF_CONTEXT[first : last + 1])
        assert answer["score"] == pytest.approx(score, abs=1e-5)


def test_words_are_compared_in_lower_case_if_the_model_was_trained_so(
    answers: httpx.Client,
) -> None:
    assert ask(answers, model="uncased") == ask(answers, model="uncased", question=QUESTION.upper())
    assert ask(answers) != ask(answers, question=QUESTION.upper())


@pytest.mark.parametrize("model", ["reader", "uncased"])
def test_questions_about_one_context_get_what_each_gets_alone(
    answers: httpx.Client, model: str
) -> None:
    questions = [QUESTION, "Who lives in Porto?", "Ben", QUESTION]
    together = ask(answers, model=model, question=questions, n_best=5)
    alone = [ask(answers, model=model, question=each, n_best=5)[0] for each in questions]
    assert together == alone
    contexts = [CONTEXT, "Lisbon", CONTEXT, CONTEXT]
    pairs = ask(answers, model=model, question=questions, context=contexts, n_best=5)
    assert [pairs[0], *pairs[2:]] == [alone[0], *alone[2:]]
    assert [answer["text"] for answer in pairs[1]] == ["Lisbon"]


def test_a_context_of_many_questions_is_split_and_described_once(
    answers: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    split: list[str] = []
    described: list[int] = []

    def count(served: Any, text: str, *more: Any) -> Any:
        split.append(text)
        return locate_input(served, text, *more)

    def describe(reader: Any, ids: Any, *more: Any) -> Document:
        described.append(len(ids))
        return Document(reader, ids, *more)

    monkeypatch.setattr("sruserve.server.repository.passage_reading.locate_input", count)
    monkeypatch.setattr("sruserve.server.tasks.question_pairs.Document", describe)
    questions = ["Who?", "Where?", "Who lives?"]
    ask(answers, question=questions)
    assert split == [CONTEXT, *questions]
    assert described == [11]


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"question": ""}, "empty_input", "question"),
        ({"question": []}, "empty_input", "question"),
        ({"question": [[]]}, "empty_input", "question"),
        ({"question": None}, "invalid_request", "question"),
        ({"question": ["Who?", " \n"]}, "empty_input", "question"),
        ({"context": " "}, "empty_input", "context"),
        ({"context": []}, "empty_input", "context"),
        ({"context": ["a", "b"]}, "invalid_request", "context"),
        ({"context": [1, 2]}, "invalid_request", "context"),
        ({"question": ["a"] * 10}, "input_too_long", "question"),
        ({"question": "a " * 513}, "input_too_long", "question"),
        ({"context": "a " * 300}, "input_too_long", None),
        ({"context": [["a"] * 301]}, "input_too_long", None),
        ({"context": "a" * 5001}, "input_too_long", "context"),
        ({"context": [["a", "b" * 5000]]}, "input_too_long", "context"),
        ({"context": [["a", "b" * 4097]]}, "invalid_text", "context"),
        ({"n_best": 0}, "invalid_request", "n_best"),
        ({"n_best": 129}, "invalid_request", "n_best"),
        ({"n_best": "2"}, "invalid_request", "n_best"),
        ({"features": {"pos": ["NN"]}}, "invalid_request", "features"),
        ({"features": {"tags": ["NN"]}}, "invalid_request", "features"),
        ({"return_state": True}, "cannot_stream", "return_state"),
        ({"state": "a"}, "cannot_stream", "state"),
        ({"input": "a"}, "invalid_request", "input"),
        ({"model": "question"}, "wrong_task", "model"),
        ({**WITH_FEATURES, "features": None}, "invalid_request", "features"),
        ({**WITH_FEATURES, "features": FEATURES | {"ner": None}}, "invalid_request", "features"),
        ({**WITH_FEATURES, "features": FEATURES | {"ner": ["O"]}}, "invalid_request", "features"),
        (
            {**WITH_FEATURES, "features": FEATURES | {"pos": ["XX"] * 6}},
            "invalid_request", "features",
        ),
        (
            {**WITH_FEATURES, "features": FEATURES | {"question_lemmas": ["a"] * 3}},
            "invalid_request", "features",
        ),
        ({**WITH_FEATURES, "features": [FEATURES] * 2}, "invalid_request", "features"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_question_about_a_context(
    answers: httpx.Client, body: Any, code: str, param: str | None
) -> None:
    reply = answers.post("/v1/answer", json=BODY | body)
    refusal(reply, 422, code, param)


def test_a_reply_counts_what_is_between_the_words_of_its_answers(answers: httpx.Client) -> None:
    body: dict[str, Any] = BODY | {
        "context": (" " * 263).join("abcdefghijklmnop"),
        "question": ["Who?"] * 9,
    }
    assert answers.post("/v1/answer", json=body).status_code == 200
    body["n_best"] = 128
    message = refusal(answers.post("/v1/answer", json=body), 422, "input_too_long")
    assert "numbers" in message


def test_texts_of_too_many_words_are_refused_before_the_others_are_split(
    answers: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    split: list[str] = []

    def count(served: Any, text: str, *more: Any) -> Any:
        split.append(text)
        return locate_input(served, text, *more)

    monkeypatch.setattr("sruserve.server.repository.passage_reading.locate_input", count)
    body = BODY | {"question": ["Who?"] * 9, "context": ["a " * 301] * 9}
    refusal(answers.post("/v1/answer", json=body), 422, "input_too_long")
    assert len(split) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"question": " "},
        {"context": " "},
        {"context": "a " * 3000},
        {"context": "a " * 301},
        {"context": (" " * 263).join("abcdefghijklmnop"), "question": ["Who?"] * 9, "n_best": 128},
    ],
    ids=["no question", "no context", "long text", "many words", "long reply"],
)
def test_a_refusal_advises_nothing_that_a_reader_does_not_have(
    answers: httpx.Client, body: dict[str, Any]
) -> None:
    message = answers.post("/v1/answer", json=BODY | body).json()["error"]["message"]
    assert "state" not in message.lower()
    assert "chunks" not in message


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/classify", {"input": "a"}),
        ("/v1/tag", {"input": "a"}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/embeddings", {"input": "a"}),
    ],
)
def test_a_reader_does_nothing_else(answers: httpx.Client, path: str, body: Any) -> None:
    reply = answers.post(path, json={"model": "reader"} | body)
    message = refusal(reply, 422, "wrong_task", "model")
    assert "answer" in message


def test_a_reader_is_listed_with_its_task_and_has_no_streams(answers: httpx.Client) -> None:
    entry = answers.get("/v1/models/reader").json()
    assert (entry["task"], entry["streams"]) == ("answer", False)
    created = answers.post("/v1/streams", json={"model": "reader"})
    message = refusal(created, 422, "cannot_stream", "state")
    assert message.endswith("without `state` and `return_state`")  # its presets are documents


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_answers_are_tensors_over_kserve(answers: httpx.Client, protocol: str) -> None:
    questions, contexts = [QUESTION, "Who?"], [CONTEXT, "Ben lives"]
    expected = ask(answers, question=questions, context=contexts, n_best=4)
    none = {"text": "", "start": -1, "end": -1, "score": 0.0}
    assert [len(each) for each in expected] == [4, 3]
    flat = [*expected[0], *expected[1], none]
    inputs = {"question": questions, "context": contexts}
    if protocol == "http":
        with connected(answers) as connection:
            tensors = [texts(*values, name=name) for name, values in inputs.items()]
            result = connection.infer("reader", tensors, parameters={"n_best": 4})
            with pytest.raises(InferenceServerException) as error:
                connection.infer("tagged", tensors)
            assert "needs 'features'" in refused(error.value, 400)
    else:
        with triton_grpc.InferenceServerClient(answers.headers["grpc-address"]) as rpc:
            tensors = [grpc_texts(triton_grpc, name, *values) for name, values in inputs.items()]
            result = rpc.infer("reader", tensors, parameters={"n_best": 4})
    columns = {"answers": "text", "starts": "start", "ends": "end"}
    for name, field in columns.items():
        assert result.as_numpy(name).shape == (2, 4)
        assert values_of(result, name) == [answer[field] for answer in flat]
    scores = [answer["score"] for answer in flat]
    assert values_of(result, "scores") == pytest.approx(scores, rel=1e-6)


@pytest.mark.parametrize("protocol", ["sruserve", "kserve"])
def test_an_examination_finds_no_difference(answers: httpx.Client, protocol: Any) -> None:
    url = str(answers.base_url).rstrip("/")
    options = Options((url,), model="reader", protocol=protocol, timeout_seconds=60.0)
    outcome = check_server(options, lambda _: None, lambda _: None)
    verdicts = {each.check.name: each.finding.verdict for each in outcome.checked}
    assert set(verdicts.values()) == {Verdict.PASSES, Verdict.NOT_APPLICABLE}, outcome
