"""A document that is a reader's preset is read once, and answers as if each request had sent it."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tritonclient.grpc as triton_grpc
from torch import Tensor
from tritonclient.utils import InferenceServerException

import sruserve
from sruserve.model.reader.documents import DocumentEncoder
from sruserve.model.reader.network import Reader
from sruserve.server.app import Application
from sruserve.server.engine.job import Job
from sruserve.server.repository.presets import compute_presets
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.settings import SettingsError
from tests.readers import save_reader
from tests.server.conftest import Serve
from tests.server.kserve.conftest import grpc_address
from tests.server.kserve.grpc_inputs import texts as grpc_texts
from tests.server.kserve.support import connected, texts, values_of
from tests.server.posting import refusal

TEXT = "Ada lives in Lisbon.  Ben lives in café Porto!"
WORDS = ["Ada", "lives", "in", "Lisbon", ".", "Ben"]
QUESTIONS = ["Where does Ada live?", "Who lives in Porto?", "Ben", "in Lisbon?", "Who?"]
TAGGED: dict[str, Any] = {
    "features": ("in_question", "in_question_lemma", "tf", "ner=PER"),
    "inputs": ("words", "features", "aligned", "pos"),
    "pos": {"labels": ("NN", "VB"), "size": 3},
}
LISTS = {
    "lemmas": ["Ada", "live", "in", "Lisbon", ".", "Ben"],
    "pos": ["NN", "VB", "VB", "NN", "VB", "NN"],
    "ner": ["PER", "O", "O", "LOC", "O", "PER"],
}
FORMS: dict[str, dict[str, Any]] = {
    "aligned": {"family": "lstm"},
    "in-question": {"inputs": ("words", "features")},
    "words-alone": {"inputs": ("words", "features"), "features": ("tf",)},
}


def write(folder: Path, presets: Any) -> Path:
    (folder / "presets.json").write_text(json.dumps(presets))
    return folder


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    parent = tmp_path_factory.mktemp("documents")
    documents = {"town": TEXT, "words": {"words": WORDS}, "short": {"text": "Ben"}}
    saved = [write(save_reader(parent / name, **form), documents) for name, form in FORMS.items()]
    tagged = save_reader(parent / "tagged", **TAGGED)
    return [*saved, write(tagged, {"words": {"words": WORDS, **LISTS}})]


@pytest.fixture(scope="module")
def running(serve: Serve, readers: list[Path]) -> Iterator[tuple[httpx.Client, Application]]:
    with serve(model_folders=readers, grpc_port=0) as (client, application):
        client.headers["grpc-address"] = grpc_address(application)
        yield client, application


@pytest.fixture(scope="module")
def client(running: tuple[httpx.Client, Application]) -> httpx.Client:
    return running[0]


@pytest.fixture
def served(
    running: tuple[httpx.Client, Application], readers: list[Path]
) -> Iterator[dict[str, ServedModel]]:
    """The models by name; a test may write other presets into their folders."""
    files = {folder / "presets.json": (folder / "presets.json").read_text() for folder in readers}
    catalogue = running[1].lifecycle.catalogue
    yield {folder.name: catalogue.with_states(folder.name) for folder in readers}
    for file, content in files.items():
        file.write_text(content)


def ask(client: httpx.Client, **body: Any) -> dict[str, Any]:
    reply = client.post("/v1/answer", json=body)
    assert reply.status_code == 200, reply.text
    return {field: reply.json()[field] for field in ("results", "usage")}


@pytest.mark.parametrize("model", FORMS)
def test_a_preset_gives_the_bits_of_the_document_that_a_request_sends(
    client: httpx.Client, model: str
) -> None:
    for preset, context in ("town", TEXT), ("words", [WORDS]), ("short", "Ben"):
        for question in (QUESTIONS, QUESTIONS[0]):
            body = {"model": model, "question": question, "n_best": 4}
            whole = ask(client, **body, context=context)
            assert ask(client, **body, preset=preset) == whole


def test_a_preset_has_the_lists_of_its_words_and_a_request_those_of_its_questions(
    client: httpx.Client,
) -> None:
    request = {"model": "tagged", "question": [["lives", "Ben"], ["Ada"]], "n_best": 3}
    lemmas = [["live", "Ben"], ["Ada"]]
    own = [{"question_lemmas": each} for each in lemmas]
    whole = ask(client, **request, context=[WORDS], features=[LISTS | each for each in own])
    assert ask(client, **request, preset="words", features=own) == whole
    for features, message in (
        (None, "tagged with a preset needs 'features' with 'question_lemmas'"),
        (LISTS | own[0], "tagged with a preset does not use 'lemmas' and 'ner' and 'pos'"),
        ({"question_lemmas": ["a"] * 3}, "3 entries for the 2 words of the question"),
    ):
        body = request | {"preset": "words", "features": features}
        reply = client.post("/v1/answer", json=body)
        assert message in refusal(reply, 422, "invalid_request", "features")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_preset_is_a_parameter_over_kserve(client: httpx.Client, protocol: str) -> None:
    results = ask(client, model="aligned", question=QUESTIONS, preset="town", n_best=2)["results"]
    parameters = {"n_best": 2, "sru_preset": "town"}
    if protocol == "http":
        with connected(client) as connection:
            tensor = texts(*QUESTIONS, name="question")
            reply = connection.infer("aligned", [tensor], parameters=parameters)
            with pytest.raises(InferenceServerException, match="cannot continue an input"):
                connection.infer(
                    "aligned",
                    [texts(QUESTIONS[0], name="question")],
                    parameters=parameters,
                    sequence_id=1,
                    sequence_start=True,
                )
    else:
        with triton_grpc.InferenceServerClient(client.headers["grpc-address"]) as rpc:
            tensor = grpc_texts(triton_grpc, "question", *QUESTIONS)
            reply = rpc.infer("aligned", [tensor], parameters=parameters)
            with pytest.raises(InferenceServerException, match="expected 2 inputs but got 1"):
                rpc.infer("aligned", [tensor])
    answers = [answer for result in results for answer in result["answers"]]
    for name, field in {"answers": "text", "starts": "start", "ends": "end"}.items():
        assert values_of(reply, name) == [answer[field] for answer in answers]


def test_a_preset_is_an_option_in_python(client: httpx.Client, readers: list[Path]) -> None:
    results = ask(client, model="aligned", question=QUESTIONS, context=TEXT)["results"]
    with sruserve.load(readers[0]) as model:
        assert model.presets == ("town", "words", "short")
        replies = model.answer(QUESTIONS, preset="town")
        assert [answers.best.score for answers in replies] == [
            result["answers"][0]["score"] for result in results
        ]
        assert model.answer(QUESTIONS[0], preset="town") == replies[0]
        assert asyncio.run(model.aio.answer(QUESTIONS, preset="town")) == replies


@pytest.mark.parametrize(
    ("body", "status", "code", "param", "message"),
    [
        ({"preset": "village"}, 404, "preset_not_found", "preset", "it has: town, words, short"),
        ({"preset": "town", "context": TEXT}, 422, "invalid_request", "preset", "not both"),
        ({"preset": "town", "state": "a"}, 422, "invalid_request", None, "not both"),
        ({"preset": "town", "return_state": True}, 422, "cannot_stream", "return_state", "whole"),
        ({"preset": "town", "question": []}, 422, "empty_input", "question", "empty list"),
        ({}, 422, "invalid_request", "context", "'context' is missing"),
    ],
)
def test_a_preset_that_is_no_document_is_refused(
    client: httpx.Client, body: Any, status: int, code: str, param: str | None, message: str
) -> None:
    reply = client.post("/v1/answer", json={"model": "aligned", "question": "Who?"} | body)
    assert message in refusal(reply, status, code, param)


def test_documents_are_listed(client: httpx.Client) -> None:
    assert client.get("/v1/models/aligned").json()["presets"] == ["town", "words", "short"]


NO_LISTS, LISTED = "words-alone", "tagged"


@pytest.mark.parametrize(
    ("model", "presets", "message"),
    [
        (NO_LISTS, {"a": " "}, "preset 'a': 'text' has"),
        (NO_LISTS, {"a": {"words": []}}, "preset 'a': 'words' has an entry without words"),
        (NO_LISTS, {"a": {"text": "Ben", "words": ["Ben"]}}, "one of 'text' and 'words'"),
        (NO_LISTS, {"a": {"text": "Ben", "tags": []}}, "Extra inputs are not permitted"),
        (NO_LISTS, {"a": {"words": ["Ben"], "pos": ["NN"]}}, "needs no lists"),
        (NO_LISTS, {"a": "Ben " * 4096}, "preset 'a': .* 4097"),
        (LISTED, {"a": "Ben"}, "needs lemmas, pos, ner, and it has no lists"),
        (LISTED, {"a": {"words": WORDS, **LISTS, "ner": ["O"]}}, "'ner' has 1 entries for the 6"),
        (LISTED, {"a": {"words": WORDS, **LISTS, "pos": ["XX"] * 6}}, "'pos' has the tag 'XX'"),
    ],
)
def test_a_document_that_cannot_be_read_is_named(
    served: dict[str, ServedModel], model: str, presets: Any, message: str
) -> None:
    file = write(served[model].model.path, presets) / "presets.json"
    with pytest.raises(SettingsError, match=message) as caught:
        compute_presets(served[model])
    assert str(file) in str(caught.value)


def test_documents_count_before_they_are_computed(served: dict[str, ServedModel]) -> None:
    write(served["aligned"].model.path, {"a": TEXT, "b": "Ada . " * 10})
    needed = (11 + 20) * (512 + 2 * 4 * 6)  # words, each with two rows of 6 numbers
    assert len(compute_presets(served["aligned"], needed)) == 2
    message = f"preset 'b': the documents up to this one need {needed:,} bytes"
    with pytest.raises(SettingsError, match=message):
        compute_presets(served["aligned"], needed - 1)


def counted(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> tuple[DocumentEncoder, list[int]]:
    """A reader's documents, and the words of each that is computed from now on."""
    network = model.model.network
    assert isinstance(network, Reader)
    encoded: list[int] = []
    encode = network.documents._encode_alone

    def count(read: list[Tensor]) -> Any:
        encoded.extend(map(len, read))
        return encode(read)

    monkeypatch.setattr(network.documents, "_encode_alone", count)
    return network.documents, encoded


def test_a_document_is_computed_once_and_forgotten_with_the_last_preset_of_it(
    served: dict[str, ServedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = served["words-alone"]
    documents, encoded = counted(model, monkeypatch)
    before = set(documents._stored)
    write(model.model.path, {"b": "Ada lives.", "c": "Ada lives."})
    presets = compute_presets(model)
    assert encoded == [3]
    assert compute_presets(model).keys() == presets.keys()
    assert encoded == [3]
    (key,) = set(documents._stored) - before
    del presets
    assert key not in documents._stored


def test_a_request_of_many_steps_encodes_its_document_once_if_no_question_changes_it(
    client: httpx.Client, served: dict[str, ServedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    documents, encoded = counted(served["words-alone"], monkeypatch)
    before = set(documents._stored)
    context, questions = "Ada lives in Porto . " * 400, [f"Who{'?' * i}" for i in range(5)]
    body = {"model": "words-alone", "question": questions, "context": context}
    results = ask(client, **body)["results"]
    assert encoded == [2000]  # of 10,000 words, which take three steps
    assert set(documents._stored) == before
    assert results[3:4] == ask(client, **body | {"question": questions[3]})["results"]


def test_what_a_request_stores_counts_in_the_queue(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Job] = []
    submit = ServedModel.submit

    def observe(served: ServedModel, job: Job) -> None:
        jobs.append(job)
        submit(served, job)

    monkeypatch.setattr(ServedModel, "submit", observe)
    for questions, stored in (["Who?"], 0), (["Who?", "Ben?"], 11 * 20 * 4):  # float32
        body = json.dumps({"model": "words-alone", "question": questions, "context": TEXT})
        assert client.post("/v1/answer", content=body).status_code == 200
        rows = len(questions) * (11 + 2) * 7 * 4
        assert jobs.pop().input_bytes == len(body) + rows + stored
