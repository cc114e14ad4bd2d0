"""Models whose tokenizer.json has any kind of parts, over HTTP."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer, processors

from sruserve.model.heads.config import HeadConfig
from tests.model.text.trained_tokenizers import KINDS, trained
from tests.server.conftest import LABELS, Serve
from tests.server.posting import refusal
from tests.support import save_random_model

TEXT = "be a  soul: how far is it,  3.5 miles to far Denver?"
FRAME = processors.TemplateProcessing(
    single="[C] $A [S]", pair="[C] $A [S] $B [S]", special_tokens=[("[C]", 0), ("[S]", 1)]
)


def changed(**parts: Any) -> Tokenizer:
    """A tokenizer with other parts."""
    tokenizer = Tokenizer.from_str(trained("byte level").to_str())
    for name, value in parts.items():
        setattr(tokenizer, name, value)
    return tokenizer


def framed() -> Tokenizer:
    return changed(post_processor=FRAME)


def truncated() -> Tokenizer:
    tokenizer = framed()
    tokenizer.enable_truncation(6)
    return tokenizer


@pytest.fixture(scope="module")
def client(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    parent = tmp_path_factory.mktemp("models")
    tokenizers = {kind: trained(kind) for kind in KINDS}
    tokenizers |= {"framed": framed(), "truncated": truncated()}
    for name, tokenizer in tokenizers.items():
        kind: dict[str, Any] = {
            "vocabulary": tokenizer.to_str().encode(), "vocab_size": tokenizer.get_vocab_size()
        }  # fmt: skip
        save_random_model(parent / f"{name} classify", "classify", labels=LABELS, **kind)
        save_random_model(parent / f"{name} generate", **kind)
        kind["labels"] = ("O", "B-X", "I-X")
        save_random_model(parent / f"{name} tag", "tag", **kind)
        save_random_model(parent / f"{name} crf", "tag", head=HeadConfig(crf=True), **kind)
    with serve(models=parent, model_folders=()) as (client, _):
        yield client


def answer(client: httpx.Client, task: str, body: Any) -> Any:
    path = {"generate": "score"}.get(task, task)
    reply = client.post(f"/v1/{path}", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()["results"][0]


def in_chunks(client: httpx.Client, task: str, model: str, chunks: list[str]) -> list[Any]:
    """The results of a text's chunks."""
    results: list[Any] = []
    for number, chunk in enumerate(chunks, 1):
        body = {"model": model, "input": chunk, "more": number < len(chunks)}
        results.append(
            answer(client, task, body | {"state": (results and results[-1]["state"]) or None})
        )
    return results


CHUNKS = [TEXT[:4], TEXT[4:5], TEXT[5:11], TEXT[11:30], TEXT[30:31], TEXT[31:]]


@pytest.mark.parametrize("kind", [*KINDS, "framed"])
def test_a_text_in_chunks_has_the_results_of_the_tokenizers_ids(
    client: httpx.Client, kind: str
) -> None:
    tokenizer = framed() if kind == "framed" else trained(kind)
    model, ids = f"{kind} classify", tokenizer.encode(TEXT).ids
    by_ids = answer(client, "classify", {"model": model, "input": ids})
    assert answer(client, "classify", {"model": model, "input": TEXT}) == by_ids
    last = in_chunks(client, "classify", model, CHUNKS)[-1]
    assert last["scores"] == by_ids["scores"]
    model = f"{kind} generate"
    by_ids = answer(client, "generate", {"model": model, "input": ids})
    assert answer(client, "generate", {"model": model, "input": TEXT}) == by_ids
    parts = in_chunks(client, "generate", model, CHUNKS)
    for name in ("tokens", "characters"):
        assert sum(part[name] for part in parts) == by_ids[name]
    likelihood = sum(part["log_likelihood"] for part in parts)
    assert likelihood == pytest.approx(by_ids["log_likelihood"])


@pytest.mark.parametrize("kind", [*KINDS, "framed"])
def test_open_labels_of_a_crf_keep_the_places_of_their_tokens(
    client: httpx.Client, kind: str
) -> None:
    def tokens(model: str) -> list[tuple[str, int, int, str]]:
        begin, rows = 0, []
        for chunk, result in zip(CHUNKS, in_chunks(client, "tag", model, CHUNKS), strict=True):
            for token in result["tokens"]:
                start, end = token["start"] + begin, token["end"] + begin
                rows.append((token["text"], start, end, token["label"]))
            begin += len(chunk)
        return rows

    own, plain = tokens(f"{kind} crf"), tokens(f"{kind} tag")
    assert [token[:3] for token in own] == [token[:3] for token in plain]
    whole = answer(client, "tag", {"model": f"{kind} crf", "input": TEXT})["tokens"]
    assert [label for *_, label in own] == [token["label"] for token in whole]


@pytest.mark.parametrize("kind", KINDS)
def test_a_completion_in_parts_has_the_text_of_the_tokenizers_decoder(
    client: httpx.Client, kind: str
) -> None:
    tokenizer, prompt = trained(kind), "how far is"
    options = {"model": f"{kind} generate", "seed": 5, "return_token_ids": True}
    body = options | {"prompt": prompt, "max_tokens": 30, "logprobs": 1}
    (whole,) = client.post("/v1/completions", json=body).json()["choices"]
    text, state = "", None
    ids: list[int] = []
    for size in (1, 2, 9, 18):
        body = options | {"prompt": "" if state else prompt, "max_tokens": size, "state": state}
        reply = client.post("/v1/completions", json=body | {"return_state": True})
        (choice,) = reply.json()["choices"]
        text, state = text + choice["text"], choice["state"]
        ids += choice["token_ids"]
    assert ids == whole["token_ids"]
    assert whole["text"].rstrip("\ufffd").startswith(text.rstrip("\ufffd"))
    before = tokenizer.encode(prompt).ids
    decoded = tokenizer.decode(before + ids, skip_special_tokens=False)
    begin = tokenizer.decode(before, skip_special_tokens=False)
    if kind != "llama":  # bytes that are no characters have replacements of their own
        assert begin + whole["text"] == decoded
    offsets = whole["logprobs"]["text_offset"]
    assert offsets == sorted(offsets)
    assert offsets[-1] <= len(whole["text"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_offsets_of_a_prompt_are_those_of_its_tokens_in_the_text(
    client: httpx.Client, kind: str
) -> None:
    body = {"model": f"{kind} generate", "max_tokens": 0, "echo": True, "logprobs": 0}
    for prompt in ("how far is it", "so  the  far\n soul", " to be"):
        reply = client.post("/v1/completions", json=body | {"prompt": prompt})
        (choice,) = reply.json()["choices"]
        text, logprobs = choice["text"], choice["logprobs"]
        at = 0
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
            word = token.lstrip()
            if not word or word not in text:  # only white space, which may be added, or no text
                continue
            at = text.index(word, at)
            space = token.removesuffix(word)
            is_added = not text[:at].endswith(space)
            assert offset == at - (0 if is_added else len(space)), (prompt, token)
            at += len(word)


def test_the_characters_of_a_score_are_those_of_the_text(client: httpx.Client) -> None:
    text = "far soul to be"
    for kind in ("byte level", "metaspace first", "suffixed", "word piece", "unigram", "llama"):
        tokenizer = trained(kind)
        ids = tokenizer.encode(text).ids
        spelled = tokenizer.decode(ids, skip_special_tokens=False)
        first = len(tokenizer.decode(ids[:1], skip_special_tokens=False))
        result = answer(client, "generate", {"model": f"{kind} generate", "input": text})
        assert result["characters"] == len(spelled) - first, kind


def test_a_prompt_gets_what_begins_a_text_and_not_what_ends_it(client: httpx.Client) -> None:
    body = {"model": "framed generate", "max_tokens": 1, "return_token_ids": True, "echo": True}
    reply = client.post("/v1/completions", json=body | {"prompt": "how far", "logprobs": 0})
    (choice,) = reply.json()["choices"]
    assert choice["token_ids"][:-1] == [0, *trained("byte level").encode("how far").ids]
    assert choice["logprobs"]["text_offset"][:2] == [0, 0]
    later = {"prompt": " is", "state": None, "return_state": True}
    state = client.post("/v1/completions", json=body | later).json()["choices"][0]["state"]
    reply = client.post("/v1/completions", json=body | {"prompt": " it", "state": state})
    (choice,) = reply.json()["choices"]
    assert choice["token_ids"][:-1] == trained("byte level").encode(" it").ids


@pytest.mark.parametrize("more", [" is", [5]], ids=["text", "ids"])
@pytest.mark.parametrize("task", ["classify", "generate"])
def test_a_text_that_has_ended_is_not_continued(
    client: httpx.Client, task: str, more: str | list[int]
) -> None:
    body = {"model": f"framed {task}", "input": "how far", "return_state": True}
    state = answer(client, task, body)["state"]
    path = {"generate": "score"}.get(task, task)
    reply = client.post(f"/v1/{path}", json=body | {"input": more, "state": state})
    assert "has ended" in refusal(reply, 422, "cannot_stream", "input")


def test_a_truncated_text_is_whole_and_as_the_tokenizer_truncates_it(client: httpx.Client) -> None:
    for task in ("classify", "generate"):
        body = {"model": f"truncated {task}"}
        ids = truncated().encode(TEXT).ids
        assert len(ids) == 6
        by_ids = answer(client, task, body | {"input": ids})
        assert answer(client, task, body | {"input": TEXT}) == by_ids
        long = answer(client, task, body | {"input": TEXT + " far" * 9000})
        assert long == by_ids
        path = {"generate": "score"}.get(task, task)
        reply = client.post(f"/v1/{path}", json=body | {"input": TEXT, "more": True})
        assert "truncates texts to 6 ids" in refusal(reply, 422, "cannot_stream", "more")
    listed = {model["id"]: model["streams"] for model in client.get("/v1/models").json()["data"]}
    assert (listed["truncated classify"], listed["framed classify"]) == (False, True)


def test_labels_of_ids_around_a_text_have_no_text(client: httpx.Client) -> None:
    result = answer(client, "tag", {"model": "framed tag", "input": "far to"})
    texts = [(token["text"], token["start"], token["end"]) for token in result["tokens"]]
    assert texts[0] == ("", 0, 0)
    assert texts[-1] == ("", 6, 6)
    assert "".join(text for text, _, _ in texts) == "farto"


def test_a_long_text_in_parts_has_the_ids_of_the_whole(client: httpx.Client) -> None:
    for kind in ("byte level", "llama", "characters", "framed", "sentencepiece"):
        tokenizer = framed() if kind == "framed" else trained(kind)
        text = (TEXT + " ") * 500
        model = {"model": f"{kind} classify"}
        by_ids = answer(client, "classify", model | {"input": tokenizer.encode(text).ids})
        assert answer(client, "classify", model | {"input": text}) == by_ids
