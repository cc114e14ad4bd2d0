"""Translations by wait-k: any split of a text is written as the whole text at once."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import torch

import sruserve
from sruserve.model.text.words import Words
from sruserve.model.translation.folder import TranslationModel
from sruserve.model.weights import read_tensors
from sruserve.server.tuning import TURN
from tests.model.translation.systems import BOS, EOS
from tests.server.conftest import Serve
from tests.server.observing import until
from tests.server.translation.asking import ask, pieces, sources, text, words
from tests.server.translation.conftest import ONE_WAY, Running, engine_of
from tests.server.translation.held_searches import Searches
from tests.server.translation.test_leaving import is_free
from tests.server.translation.wait_k_oracle import wait_k

NAMES = tuple(ONE_WAY)
KS = (1, 2, 3, 5, 9, 1000)


@pytest.fixture
def client(both: Running) -> httpx.Client:
    return both[0]


class Joined(NamedTuple):
    """The replies to all chunks of one text."""

    text: str
    finish_reason: str | None
    score: float | None
    log_probability: float | None


def send(client: httpx.Client, model: str, chunks: list[Any], **fields: Any) -> Joined:
    """Translate a text chunk by chunk."""
    return counted(client, model, chunks, **fields)[0]


def counted(
    client: httpx.Client, model: str, chunks: list[Any], **fields: Any
) -> tuple[Joined, int]:
    """Translate a text chunk by chunk, and count the steps of all replies."""
    written, steps, state, result = "", 0, None, dict[str, Any]()
    for number, chunk in enumerate(chunks):
        body = {"model": model, "input": chunk, "scores": True, "more": number + 1 < len(chunks)}
        body |= fields if state is None else {"state": state}
        reply = client.post("/v1/translate", json=body)
        assert reply.status_code == 200, reply.text
        (result,) = reply.json()["results"]
        assert (result["state"] is not None) == body["more"]
        written, state = written + result["text"], result["state"]
        steps += reply.json()["usage"]["steps"]
    scores = result["score"], result["log_probability"]
    return Joined(written, result["finish_reason"], *scores), steps


@pytest.mark.parametrize("name", NAMES)
def test_any_split_of_a_text_gives_the_translation_of_the_whole(
    client: httpx.Client, name: str
) -> None:
    draw, reasons = random.Random(name), set()
    for ids in sources(8, longest=14, seed=7):
        whole, k = text(ids), draw.choice(KS)
        options = {"wait_k": k, **draw.choice([{}, {"max_tokens": draw.randint(1, 12)}])}
        expected = send(client, name, [whole], **options)
        assert send(client, name, pieces(whole, draw), **options) == expected
        reasons.add(expected.finish_reason)
    assert reasons == {"stop", "length"}


def test_each_character_may_be_a_chunk_and_the_steps_of_all_chunks_add_up(
    client: httpx.Client,
) -> None:
    whole, options = "a12 a5  a22\ta7", {"wait_k": 5, "max_tokens": 6}
    expected = counted(client, "gru-one-way", [whole], **options)
    assert counted(client, "gru-one-way", [*whole, ""], **options) == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_wait_as_long_as_the_text_gives_the_greedy_translation(
    client: httpx.Client, name: str
) -> None:
    for ids in sources(4):
        (greedy,) = ask(client, name, input=text(ids), beam_size=1, scores=True)
        (waiting,) = ask(client, name, input=text(ids), wait_k=len(ids) + 2, scores=True)
        assert waiting == greedy


@pytest.mark.parametrize("name", ["gru-one-way", "lstm-one-way"])
@pytest.mark.parametrize("k", [1, 3])
def test_tokens_are_those_of_a_plain_computation_and_written_as_soon_as_they_may_be(
    client: httpx.Client, one_way: dict[str, TranslationModel], name: str, k: int
) -> None:
    model = one_way[name]
    tensors, _ = read_tensors(model.path / "model.safetensors")
    for ids in sources(5, longest=9):
        source, state, written = [BOS, *ids, EOS], None, list[str]()
        with torch.no_grad():
            expected = wait_k(model.config.system, tensors, source, k, 12)  # type: ignore[arg-type]
        result: dict[str, Any] = {}
        for number, token in enumerate(source, 1):
            body: dict[str, Any] = {"input": [token], "more": number < len(source)}
            body |= {"state": state} if state else {"wait_k": k, "max_tokens": 12}
            (result,) = ask(client, name, scores=True, **body)
            state, written = result["state"], [*written, *result["text"].split()]
            steps = sum(read <= number for read in expected.read)
            assert " ".join(written) == words(expected.tokens[:steps])
            total = sum(expected.log_probabilities[:steps])
            assert result["log_probability"] == pytest.approx(total, abs=1e-5 * (steps + 1))
        assert result["finish_reason"] == expected.finish_reason


def test_company_changes_no_bit(both: Running, searches: Searches) -> None:
    """Chunks of many texts, with beam searches between them, all at once, and each alone."""
    client, application = both
    engines, draw = [engine_of(application, name) for name in NAMES[:2]], random.Random(3)
    texts = [text(each) for each in sources(24, longest=16)]
    cut = [pieces(each, draw) for each in texts]

    def translate(i: int) -> Any:
        name = NAMES[i % 2]
        if i % 3:
            return send(client, name, cut[i], wait_k=1 + i % 5)
        return ask(client, name, input=texts[i], beam_size=4, scores=True, attention=True)

    alone = [translate(i) for i in range(len(texts))]
    searches.hold()
    with ThreadPoolExecutor(len(texts)) as threads:
        replies = [threads.submit(translate, i) for i in range(len(texts))]
        assert searches.waiting.wait(60)
        until(
            lambda: (
                all(each.waiting + each.running == len(texts) // 2 for each in engines)
                or any(reply.done() for reply in replies)  # none can be, without a mistake
            )
        )
        searches.widths.clear()
        searches.go_on()
        assert [reply.result() for reply in replies] == alone
    assert max(len(widths) for widths in searches.widths) > 4


def test_a_chunk_that_lets_nothing_be_written_waits_for_no_step(
    both: Running, searches: Searches
) -> None:
    client, application = both
    engine = engine_of(application, "gru-one-way")
    searches.hold()
    with ThreadPoolExecutor(2) as threads:
        search = threads.submit(ask, client, "gru-one-way", input="a4 a5 a6", beam_size=4)
        assert searches.waiting.wait(60)
        chunk = threads.submit(ask, client, "gru-one-way", input="a4 ", wait_k=9, more=True)
        until(lambda: engine.waiting == 1)
        searches.one_step()
        assert searches.waiting.wait(60)
        try:
            assert chunk.result(60)[0]["text"] == ""
        finally:
            searches.go_on()
        search.result()


def test_several_texts_continue_with_a_state_each(client: httpx.Client) -> None:
    body: dict[str, Any] = {"wait_k": 2, "more": True}
    first = ask(client, "gru-one-way", input=["a4 a5 ", "a6 "], **body)
    states = [each["state"] for each in first]
    more = ask(client, "gru-one-way", input=["a7 a8", "a9", "a4"], state=[*states, None], wait_k=2)
    for index, (begin, end) in enumerate([("a4 a5 ", "a7 a8"), ("a6 ", "a9"), ("", "a4")]):
        (whole,) = ask(client, "gru-one-way", input=begin + end, wait_k=2)
        written = first[index]["text"] if index < 2 else ""
        assert written + more[index]["text"] == whole["text"]


def test_what_follows_the_end_of_a_translation_is_read_and_changes_nothing(
    client: httpx.Client,
) -> None:
    (ended,) = ask(client, "sru-one-way", input="a4 a5 a6 ", wait_k=1, max_tokens=1, more=True)
    assert ended["finish_reason"] in ("stop", "length")
    (more,) = ask(client, "sru-one-way", input="a7 a8 a9 ", state=ended["state"], more=True)
    assert (more["text"], more["finish_reason"]) == ("", ended["finish_reason"])
    (last,) = ask(client, "sru-one-way", input="a7", state=more["state"])
    assert (last["text"], last["finish_reason"]) == ("", ended["finish_reason"])
    assert last["state"] is None


def test_a_long_chunk_is_read_in_parts_and_ids_continue_with_a_text(client: httpx.Client) -> None:
    ids = [3 + i * i % 20 for i in range(3000)]
    assert len(text(ids)) > TURN
    options: dict[str, Any] = {"wait_k": 7, "max_tokens": 5}
    whole = send(client, "gru-one-way", [[BOS, *ids, EOS]], **options)
    assert send(client, "gru-one-way", ["a3", text(ids)[2:], ""], **options) == whole
    assert send(client, "gru-one-way", ["a3 a4", [*ids[2:], EOS]], **options) == whole


@pytest.mark.parametrize("following", ["3", [BOS]])
def test_a_long_word_that_a_state_holds_is_read_beside_the_event_loop(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, following: Any
) -> None:
    (begun,) = ask(client, "gru-one-way", input="a" * TURN, wait_k=1, more=True)
    read: list[tuple[str, str]] = []
    encode = Words.encode

    def seen(codec: Words, text: str, word: str = "", more: bool = False) -> Any:
        read.append((threading.current_thread().name, word[:1]))
        return encode(codec, text, word, more)

    monkeypatch.setattr(Words, "encode", seen)
    ask(client, "gru-one-way", input=following, state=begun["state"])
    assert [(name.startswith("offload"), word) for name, word in read] == [(True, "a")]


def test_nothing_of_a_chunk_is_left_in_the_engine(both: Running) -> None:
    client, application = both
    send(client, "gru-one-way", ["a4 a", "5 a6 ", "", "a7"], wait_k=2)
    until(lambda: is_free(engine_of(application, "gru-one-way")))


BEGIN: dict[str, Any] = {"model": "gru-one-way", "input": "a4 a5 ", "wait_k": 2}


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"model": "gru-dot"}, "cannot_stream", "reads the source in both directions"),
        ({"beam_size": 2}, "invalid_request", "'wait_k' translates greedily"),
        ({"n_best": 2}, "invalid_request", "'n_best'"),
        ({"attention": True}, "invalid_request", "'attention' does not go with 'wait_k'"),
        ({"stream": True, "beam_size": 2}, "invalid_request", "'wait_k' translates greedily"),
        ({"stream": True, "model": "gru-dot"}, "cannot_stream", "in both directions"),
        ({"return_state": True}, "invalid_request", "'return_state' needs 'more'"),
        ({"wait_k": 0}, "invalid_request", "'wait_k'"),
        ({"input": "", "more": True}, "empty_input", "nothing to translate"),
        ({"input": " "}, "empty_input", "nothing to translate"),
        ({"state": ["x", None]}, "invalid_request", "2 states for 1 texts"),
        ({"state": "x"}, "state_tampered", "not base64"),
        ({"state": [None], "wait_k": None}, "invalid_request", "has no state: send 'wait_k'"),
    ],
)
def test_a_chunk_that_cannot_be_translated_is_refused_by_name(
    client: httpx.Client, fields: dict[str, Any], code: str, message: str
) -> None:
    reply = client.post("/v1/translate", json=BEGIN | fields)
    error = reply.json()["error"]
    assert (error["code"], reply.status_code) == (code, 422)
    assert message in error["message"]


def test_a_state_belongs_to_its_model_and_to_the_options_of_its_first_chunk(
    client: httpx.Client,
) -> None:
    (begun,) = ask(client, more=True, **BEGIN)
    go_on: dict[str, Any] = {"model": "gru-one-way", "input": "a6", "state": begun["state"]}
    for fields, code, message in (
        ({"model": "lstm-one-way"}, "state_wrong_model", "another model"),
        ({"wait_k": 3}, "invalid_request", "began with 2: leave 'wait_k' out"),
        ({"max_tokens": 3}, "invalid_request", "began without it: leave 'max_tokens' out"),
        ({"state": begun["state"][:-8]}, "state_tampered", "changed or cut"),
        ({"input": " ", "state": begun["state"], "wait_k": 2}, None, ""),
    ):
        reply = client.post("/v1/translate", json=go_on | fields)
        assert reply.json().get("error", {}).get("code") == code
        assert message in reply.text
    unnamed = client.post("/v1/translate", json={"input": "a6", "state": begun["state"]})
    assert unnamed.json()["model"] == "gru-one-way"  # which its state names


@pytest.mark.parametrize("path", ["streams", "state"])
def test_streams_and_views_of_states_are_refused_by_name(client: httpx.Client, path: str) -> None:
    (begun,) = ask(client, more=True, **BEGIN)
    body = {"state": begun["state"]} | ({"model": "gru-one-way"} if path == "streams" else {})
    reply = client.post(f"/v1/{path}", json=body)
    assert reply.json()["error"]["code"] == "cannot_stream"
    assert "send each chunk to /v1/translate, with `wait_k`" in reply.text


@pytest.mark.parametrize(
    "parameters",
    [
        {"sequence_id": 1, "sequence_start": True},
        {"sru_state": "x"},
        {"sru_preset": "x"},
        {"sru_return_state": True},
    ],
)
def test_sequences_and_states_over_kserve_are_refused_by_name(
    client: httpx.Client, parameters: dict[str, Any]
) -> None:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a4"]}
    for name, message in (
        ("gru-one-way", "send each chunk to /v1/translate, with `wait_k`"),
        ("gru-dot", "because it translates whole texts"),
    ):
        body = {"inputs": [tensor], "parameters": parameters}
        reply = client.post(f"/v2/models/{name}/infer", json=body)
        assert reply.status_code == 400
        assert message in reply.json()["error"]


def test_an_unknown_parameter_over_kserve_is_refused_with_those_of_a_translation(
    client: httpx.Client,
) -> None:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a4"]}
    body = {"inputs": [tensor], "parameters": {"temperature": 1}}
    error = client.post("/v2/models/gru-dot/infer", json=body).json()["error"]
    known = "priority, timeout, beam_size, length_penalty, max_tokens"
    assert error == f"unknown parameter 'temperature'; use one of: {known}"


def test_the_list_of_models_says_which_translate_texts_in_chunks(client: httpx.Client) -> None:
    models = {each["id"]: each for each in client.get("/v1/models").json()["data"]}
    chunks = {name: model["streams"] for name, model in models.items()}
    assert chunks == dict.fromkeys(ONE_WAY, True) | {"gru-dot": False}
    assert {model["state_bytes"] for model in models.values()} == {0}


def test_a_state_that_no_token_holds_and_a_source_over_the_limit_are_refused(
    serve: Serve, one_way: dict[str, TranslationModel]
) -> None:
    path = str(one_way["gru-one-way"].path)
    with serve(path, max_state_token_bytes=2000, max_batch_tokens=64) as (client, _):
        (begun,) = ask(client, more=True, **BEGIN)
        body: dict[str, Any] = {"state": begun["state"], "more": True}
        reply = client.post("/v1/translate", json={"input": "a4 " * 40, **body})
        assert (reply.status_code, reply.json()["error"]["code"]) == (422, "state_too_large")
        assert "SRUSERVE_MAX_STATE_TOKEN_BYTES" in reply.text
        reply = client.post("/v1/translate", json={"input": "a4 " * 62, **body})
        assert (reply.status_code, reply.json()["error"]["code"]) == (422, "input_too_long")
        assert "65 tokens, with those around it and those of earlier chunks" in reply.text
        assert ask(client, input="a4 " * 40, state=begun["state"], model="gru-one-way")


def test_in_python_a_text_continues_with_the_state_of_its_last_result(
    client: httpx.Client, one_way: dict[str, TranslationModel]
) -> None:
    whole = send(client, "gru-one-way", ["a4 a5 a6 a7"], wait_k=2)
    with sruserve.load(Path(one_way["gru-one-way"].path)) as model:
        first = model.translate("a4 a5 a", wait_k=2, more=True)
        assert first.finish_reason is None
        last = model.translate("6 a7", state=first.state)
    assert (first.text or "") + (last.text or "") == whole.text
    assert last.score == whole.score
