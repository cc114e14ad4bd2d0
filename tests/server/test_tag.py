"""Tags over HTTP: a label for every step, spans, and streams in any chunks."""

from typing import Any

import httpx
import pytest

from sruserve.server.http.responses.tag import TagReply
from tests.server.posting import refusal

TEXT = "How far is it  from Denver to Aspen? who nowhere"


def tag(client: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    reply = client.post("/v1/tag", json={"model": "tagger"} | body)
    assert reply.status_code == 200, reply.text
    TagReply.model_validate_json(reply.content, strict=True)
    assert reply.json()["id"].startswith("tag-")
    results: list[dict[str, Any]] = reply.json()["results"]
    return results


def moved(part: dict[str, Any], by: int) -> dict[str, Any]:
    """A token or a span as it is in a text that has `by` more characters, or steps, before it."""
    places = {name: part[name] + by for name in ("start", "end", "index") if name in part}
    return part | places


def joined(chunks: list[tuple[str, dict[str, Any]]]) -> tuple[list[Any], list[Any]]:
    """The tokens of all chunks of a text, and their spans without texts and scores."""
    tokens: list[Any] = []
    spans: list[Any] = []
    begin = 0
    for text, result in chunks:
        tokens += [moved(token, begin) for token in result["tokens"]]
        for span in (moved(span, begin) for span in result["spans"]):
            if span["continued"]:
                spans[-1] = (*spans[-1][:2], span["end"])
            else:
                spans.append((span["label"], span["start"], span["end"]))
        begin += len(text)
    return tokens, spans


def without_text(tokens: list[Any]) -> list[Any]:
    return [{k: v for k, v in token.items() if k != "text"} for token in tokens]


def test_every_word_gets_a_label_and_its_place(tasks: httpx.Client) -> None:
    (result,) = tag(tasks, input=TEXT)
    assert [token["text"] for token in result["tokens"]] == TEXT.split()
    for token in result["tokens"]:
        assert TEXT[token["start"] : token["end"]] == token["text"]
        assert 0.2 <= token["score"] <= 1
    assert result["state"] is None
    assert "pending" not in result
    for span in result["spans"]:
        assert TEXT[span["start"] : span["end"]] == span["text"]
        inside = [t for t in result["tokens"] if span["start"] <= t["start"] < span["end"]]
        assert {t["label"][2:] for t in inside} == {span["label"]}
        assert span["score"] == pytest.approx(sum(t["score"] for t in inside) / len(inside))
        assert not span["continued"]
    labelled = [token for token in result["tokens"] if token["label"] != "O"]
    assert labelled
    for token in labelled:
        assert any(s["start"] <= token["start"] < s["end"] for s in result["spans"])


@pytest.mark.parametrize("cut", range(1, len(TEXT) + 1))
def test_two_chunks_give_the_tokens_and_spans_of_the_whole(tasks: httpx.Client, cut: int) -> None:
    (whole,) = tag(tasks, input=TEXT, return_state=True)
    (first,) = tag(tasks, input=TEXT[:cut], more=True)
    (last,) = tag(tasks, input=TEXT[cut:], state=first["state"], return_state=True)
    tokens, spans = joined([(TEXT[:cut], first), (TEXT[cut:], last)])
    assert tokens == whole["tokens"]
    assert spans == joined([(TEXT, whole)])[1]
    after = tag(tasks, input="who what where", state=last["state"])
    assert after == tag(tasks, input="who what where", state=whole["state"])


def test_characters_one_by_one_give_the_tokens_and_spans_of_the_whole(tasks: httpx.Client) -> None:
    state, chunks = None, []
    for character in TEXT:
        (result,) = tag(tasks, input=character, state=state, more=True)
        state = result["state"]
        chunks.append((character, result))
    chunks.append(("", tag(tasks, input="", state=state)[0]))
    (whole,) = tag(tasks, input=TEXT)
    tokens, spans = joined(chunks)
    assert tokens == whole["tokens"]
    assert spans == joined([(TEXT, whole)])[1]
    assert any(span["continued"] for _, result in chunks for span in result["spans"])


def test_a_word_that_was_held_back_begins_before_the_chunk(tasks: httpx.Client) -> None:
    (first,) = tag(tasks, input="How Den", more=True)
    assert [token["text"] for token in first["tokens"]] == ["How"]
    (last,) = tag(tasks, input="ver to", state=first["state"])
    assert [(t["text"], t["start"], t["end"]) for t in last["tokens"]] == [
        ("Denver", -3, 3),
        ("to", 4, 6),
    ]


def test_runs_of_equal_labels_are_spans_where_labels_have_no_prefix(tasks: httpx.Client) -> None:
    text = "Über den Wolken — muß die Freiheit wohl grenzenlos sein"
    (result,) = tag(tasks, model="letters", input=text)
    assert len(result["tokens"]) == len(text.encode())
    assert result["tokens"][0]["text"] == result["tokens"][1]["text"] == "Ü"
    assert "".join(text[t["start"]] for t in result["tokens"]).startswith("ÜÜber")
    runs = [t["label"] for t in result["tokens"]]
    changes = [label for i, label in enumerate(runs) if not i or label != runs[i - 1]]
    assert [span["label"] for span in result["spans"]] == [c for c in changes if c != "O"]
    chunks = []
    state = None
    for begin in range(0, len(text), 7):
        (part,) = tag(tasks, model="letters", input=text[begin : begin + 7], state=state, more=True)
        state = part["state"]
        chunks.append((text[begin : begin + 7], part))
    assert joined(chunks) == joined([(text, result)])


def test_a_list_gives_what_each_text_gives_alone(tasks: httpx.Client) -> None:
    texts = [TEXT, "who", "a b c " * 90, "Denver how"]
    assert tag(tasks, input=texts) == [tag(tasks, input=text)[0] for text in texts]


def test_the_texts_of_tokens_and_spans_count_in_the_reply(tasks: httpx.Client) -> None:
    texts = ["x" * 730_000] * 3  # one unknown word each
    reply = tasks.post("/v1/tag", json={"model": "tagger", "input": texts})
    assert "the reply would have" in refusal(reply, 422, "input_too_long")


def test_ids_and_features_have_indices_instead_of_texts(tasks: httpx.Client) -> None:
    (text,) = tag(tasks, input="How far is it", return_state=True)
    (ids,) = tag(tasks, input=[1, 2, 3, 4])
    assert [token["index"] for token in ids["tokens"]] == [0, 1, 2, 3]
    for token, same in zip(ids["tokens"], text["tokens"], strict=True):
        assert (token["label"], token["score"]) == (same["label"], same["score"])
        assert "text" not in token
    (unfinished,) = tag(tasks, input="How fa", more=True)
    (after,) = tag(tasks, input=[3, 4], state=unfinished["state"])  # 'fa' is a word of its own then
    assert [token["index"] for token in after["tokens"]] == [-1, 0, 1]

    rows = [[0.3 * ((i * 7 + j) % 5) - 0.5 for j in range(8)] for i in range(100)]
    (whole,) = tag(tasks, model="motion", features=rows, return_state=True)
    (first,) = tag(tasks, model="motion", features=rows[:33], return_state=True)
    (last,) = tag(tasks, model="motion", features=rows[33:], state=first["state"])
    tokens, spans = joined([("x" * 33, first), ("", last)])
    assert (tokens, spans) == joined([("", whole)])
    for span in whole["spans"]:
        assert {whole["tokens"][i]["label"][2:] for i in range(span["start"], span["end"])} == {
            span["label"]
        }


def test_a_chunk_without_a_finished_word_has_no_tokens(tasks: httpx.Client) -> None:
    (first,) = tag(tasks, input="Ho", more=True)
    assert (first["tokens"], first["spans"]) == ([], [])
    (empty,) = tag(tasks, input="", state=first["state"], more=True)
    (rest,) = tag(tasks, input="", state=empty["state"])
    assert [token["label"] for token in rest["tokens"]] == [
        token["label"] for token in tag(tasks, input="Ho")[0]["tokens"]
    ]


def test_a_model_that_reads_backwards_tags_whole_texts_and_says_why_it_does_not_continue(
    tasks: httpx.Client,
) -> None:
    assert len(tag(tasks, model="backwards", input=TEXT)[0]["tokens"]) == 10
    for field, value in (("return_state", True), ("more", True), ("state", "x")):
        body = {"model": "backwards", "input": TEXT, field: value}
        message = refusal(tasks.post("/v1/tag", json=body), 422, "cannot_stream", field)
        assert "bidirectional" in message
    reply = tasks.post("/v1/tag", json={"model": "backwards", "input": "a " * 65})
    assert "bidirectional" in refusal(reply, 422, "input_too_long")
