"""`POST /v1/translate`: the translations are those of a plain beam search."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sruserve.model.translation.folder import TranslationModel
from sruserve.server.tuning import TURN
from tests.model.translation.systems import BOS, EOS
from tests.server.test_long_texts import Reads
from tests.server.translation import plain
from tests.server.translation.asking import ask, sources, stream, text, words
from tests.server.translation.conftest import NAMES, Running
from tests.server.translation.held_searches import Searches

LIMIT = 12


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("beams", "n_best", "alpha"), [(1, 1, 0.6), (5, 3, 0.6), (3, 3, 0.0)])
def test_translations_are_those_of_a_plain_beam_search(
    running: Running,
    systems: dict[str, TranslationModel],
    name: str,
    beams: int,
    n_best: int,
    alpha: float,
) -> None:
    ids, options = sources(4), {"beam_size": beams, "n_best": n_best, "length_penalty": alpha}
    texts = [text(each) for each in ids]
    results = ask(running[0], name, input=texts, max_tokens=LIMIT, scores=True, **options)
    reasons = set()
    for each, result in zip(ids, results, strict=True):
        translations = [result, *result["alternatives"]]
        source = [BOS, *each, EOS]
        expected = plain.search(systems[name].translator, source, beams, n_best, alpha, LIMIT)
        assert len(translations) == n_best
        for one, other in zip(translations, expected, strict=True):
            assert one["text"] == words(other.tokens)
            assert one["finish_reason"] == other.finish_reason
            assert one["score"] == other.score
            assert one["log_probability"] == other.log_probability
            reasons.add(other.finish_reason)
    assert reasons == {"stop", "length"} or beams == 1


def test_without_a_limit_a_translation_may_have_50_tokens_more_than_its_text(
    running: Running, systems: dict[str, TranslationModel]
) -> None:
    source = [5, 7]
    (result,) = ask(running[0], "transformer", input=text(source), beam_size=1, scores=True)
    ids = [BOS, *source, EOS]
    (expected,) = plain.search(systems["transformer"].translator, ids, 1, limit=len(ids) + 50)
    assert result["text"] == words(expected.tokens)


def test_company_changes_no_bit(running: Running, searches: Searches) -> None:
    """64 sentences in requests of several sizes and options, all at once, and each alone."""
    client, _ = running
    texts = [text(each) for each in sources(64, longest=20)]
    options: list[dict[str, Any]] = [
        {"beam_size": 1 + i % 6, "max_tokens": 6 + i % 9, "attention": i % 3 == 0} for i in range(8)
    ]

    def request(i: int) -> list[dict[str, Any]]:
        inputs = texts[8 * i : 8 * i + 8]
        return ask(client, NAMES[i % 2], input=inputs, scores=True, **options[i])

    searches.hold()
    with ThreadPoolExecutor(8) as threads:
        replies = [threads.submit(request, i) for i in range(8)]
        assert searches.waiting.wait(60)
        searches.go_on()
        together = [result for reply in replies for result in reply.result()]
    assert max(len(widths) for widths in searches.widths) >= 8
    alone = []
    for i, one in enumerate(texts):
        alone += ask(client, NAMES[i // 8 % 2], input=one, scores=True, **options[i // 8])
    assert together == alone


def test_a_streamed_translation_is_the_greedy_one(running: Running) -> None:
    client, _ = running
    texts = [text(each) for each in sources(5, seed=9)]
    fields: dict[str, Any] = {"input": texts, "max_tokens": 20, "scores": True}
    whole = client.post("/v1/translate", json={"model": "transformer", "beam_size": 1, **fields})
    *events, last = stream(client, "transformer", **fields)
    written = [""] * len(texts)
    ends: dict[int, dict[str, Any]] = {}
    for event in events:
        (part,) = event["results"]
        assert part["index"] not in ends
        written[part["index"]] += part["text"]
        if part["finish_reason"] is not None:
            ends[part["index"]] = part
    for index, result in enumerate(whole.json()["results"]):
        assert written[index] == result["text"]
        assert ends[index]["finish_reason"] == result["finish_reason"]
        assert ends[index]["score"] == result["score"]
    assert last["results"] == []
    assert last["usage"] == whole.json()["usage"]


def test_attention_has_a_share_of_each_source_token_for_each_token(running: Running) -> None:
    (result,) = ask(
        running[0], "gru-dot", input=text([4, 5, 6]), attention=True, max_tokens=9, n_best=2
    )
    for each in (result, *result["alternatives"]):
        alignment = each["alignment"]
        assert [each.strip() for each in alignment["source"]] == ["<s>", "a4", "a5", "a6", "</s>"]
        assert "".join(alignment["target"]).strip() == each["text"]
        assert len(alignment["weights"]) == len(alignment["target"])
        for row in alignment["weights"]:
            assert len(row) == 5
            assert sum(row) == pytest.approx(1)


def test_other_fields_are_null_unless_requested(running: Running) -> None:
    reply = running[0].post("/v1/translate", json={"model": "transformer", "input": "a4 a5"}).json()
    (result,) = reply["results"]
    assert result["score"] is result["log_probability"] is result["alignment"] is None
    assert result["token_ids"] is None
    assert result["alternatives"] == []
    assert reply["usage"]["steps"] > 4


LONG = " ".join(["a4"] * 63)


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({}, "invalid_request", "'input' is missing"),
        ({"input": []}, "empty_input", "empty list"),
        ({"input": ""}, "empty_input", "nothing to translate"),
        ({"input": ["a4", "  "]}, "empty_input", "nothing to translate"),
        ({"input": LONG}, "input_too_long", "65 tokens"),
        ({"input": [[4, 23]]}, "invalid_request", "token id 23"),
        ({"input": "a4", "beam_size": 0}, "invalid_request", "'beam_size'"),
        ({"input": "a4", "beam_size": 65}, "invalid_request", "'beam_size'"),
        ({"input": "a4", "beam_size": 2, "n_best": 3}, "invalid_request", "'n_best' is 3"),
        ({"input": "a4", "n_best": 0}, "invalid_request", "'n_best'"),
        ({"input": "a4", "max_tokens": 0}, "invalid_request", "'max_tokens'"),
        ({"input": "a4", "max_tokens": 65}, "invalid_request", "64 positions"),
        ({"input": "a4", "length_penalty": -1}, "invalid_request", "'length_penalty'"),
        ({"input": "a4", "stream": True, "beam_size": 2}, "invalid_request", "'stream'"),
        ({"input": "a4", "stream": True, "attention": True}, "invalid_request", "'attention'"),
        ({"input": "a4", "state": "x"}, "cannot_stream", "attends to the whole source"),
        ({"input": "a4", "more": True}, "invalid_request", "send 'wait_k', too"),
        ({"input": "a4", "model": "nobody"}, "model_not_found", "nobody"),
    ],
)
def test_a_request_that_cannot_be_translated_is_refused_by_name(
    running: Running, fields: dict[str, Any], code: str, message: str
) -> None:
    reply = running[0].post("/v1/translate", json={"model": "transformer", **fields})
    error = reply.json()["error"]
    assert (error["code"], reply.status_code) == (code, 404 if code == "model_not_found" else 422)
    assert message in error["message"]


@pytest.mark.parametrize("path", ["classify", "score", "completions", "tokenize", "streams"])
def test_other_tasks_are_refused(running: Running, path: str) -> None:
    name = "prompt" if path in ("completions", "tokenize") else "input"
    body = {"model": "transformer"} | ({} if path == "streams" else {name: "a4"})
    url = path if path == "tokenize" else f"v1/{path}"
    reply = running[0].post(f"/{url}", json=body)
    assert reply.status_code == 422
    assert reply.json()["error"]["code"] == ("cannot_stream" if path == "streams" else "wrong_task")


def test_a_long_text_is_read_in_parts_as_its_ids_are(running: Running) -> None:
    ids = [3 + i * i % 20 for i in range(3000)]
    assert len(text(ids)) > TURN
    options: dict[str, Any] = {"beam_size": 1, "max_tokens": 5, "scores": True}
    read = ask(running[0], "gru-dot", input=text(ids), **options)
    assert read == ask(running[0], "gru-dot", input=[[BOS, *ids, EOS]], **options)


def test_a_text_over_the_limit_is_read_only_until_it_has_too_many_tokens(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, body = Reads(monkeypatch), {"model": "gru-dot", "input": "a4 " * 50_000}
    reply = running[0].post("/v1/translate", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "input_too_long")
    assert "has at least 5462 tokens, with those around it, and a text may have 4096" in reply.text
    assert sum(reads.sizes) <= 2 * TURN
