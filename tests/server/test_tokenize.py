"""Tokens of texts and texts of tokens, in vLLM's shape."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from sruserve.server.http.responses.tokenize import DetokenizeReply, TokenizeReply
from tests.model.text.trained_tokenizers import KINDS, trained
from tests.server.conftest import CHARACTERS, LABELS, Serve
from tests.server.hand_clock import HandClock
from tests.server.keys import ACME, OTHER, bearer
from tests.server.observing import metric, until
from tests.server.posting import refusal
from tests.server.test_tokenizers import framed, truncated
from tests.support import save_random_model

TEXT = "be a soul: how far is it, 3.5 miles to far Denver?"


@pytest.fixture(scope="module")
def tokens(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Models with a trained tokenizer of each kind, and with ids around texts."""
    parent = tmp_path_factory.mktemp("tokens")
    tokenizers = {kind: trained(kind) for kind in KINDS}
    tokenizers |= {"framed": framed(), "truncated": truncated()}
    for name, tokenizer in tokenizers.items():
        size = tokenizer.get_vocab_size()
        kind: dict[str, Any] = {"vocabulary": tokenizer.to_str().encode(), "vocab_size": size}
        save_random_model(parent / name, **kind)
        if "ed" in name:
            save_random_model(parent / f"{name} classify", "classify", labels=LABELS, **kind)
    with serve(models=parent, model_folders=()) as (client, _):
        yield client


def tokenize(client: httpx.Client, model: str, prompt: str, **body: Any) -> dict[str, Any]:
    reply = client.post("/tokenize", json={"model": model, "prompt": prompt} | body)
    assert reply.status_code == 200, reply.text
    TokenizeReply.model_validate_json(reply.content, strict=True)
    answer: dict[str, Any] = reply.json()
    assert answer["count"] == len(answer["tokens"])
    return answer


def detokenize(client: httpx.Client, model: str, tokens: list[int]) -> str:
    reply = client.post("/detokenize", json={"model": model, "tokens": tokens})
    assert reply.status_code == 200, reply.text
    return DetokenizeReply.model_validate_json(reply.content, strict=True).prompt


def own_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize("kind", KINDS)
def test_the_ids_are_those_of_the_tokenizer_and_give_the_text_of_its_decoder(
    tokens: httpx.Client, kind: str
) -> None:
    tokenizer = trained(kind)
    ids = tokenize(tokens, kind, TEXT)["tokens"]
    assert ids == own_ids(tokenizer, TEXT)
    text = detokenize(tokens, kind, ids)
    assert text.strip() == tokenizer.decode(ids).strip()


@pytest.mark.parametrize(
    "text", ["", "To be, or\nnot é €😀", "a" * 20_000], ids=["", "bytes", "long"]
)
def test_a_vocabulary_of_bytes_is_inverted_exactly(client: httpx.Client, text: str) -> None:
    answer = tokenize(client, "characters", text)
    known = text.encode()
    assert answer["tokens"] == [CHARACTERS.index(byte) for byte in known]
    assert answer["token_strs"] is answer["max_model_len"] is None
    assert detokenize(client, "characters", answer["tokens"]) == text


def test_a_long_text_has_the_ids_of_the_whole(tokens: httpx.Client) -> None:
    text = (TEXT + " ") * 500
    ids = tokenize(tokens, "byte level", text)["tokens"]
    assert ids == own_ids(trained("byte level"), text)
    assert detokenize(tokens, "byte level", ids) == text


def test_the_texts_of_tokens_are_those_of_logprobs(client: httpx.Client) -> None:
    answer = tokenize(client, "characters", "é!", return_token_strs=True)
    assert answer["token_strs"] == ["bytes:\\xc3", "bytes:\\xa9", "!"]
    body = {"model": "characters", "prompt": "é!", "max_tokens": 0, "echo": True, "logprobs": 0}
    (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    assert choice["logprobs"]["tokens"] == answer["token_strs"]


def test_the_ids_around_a_text_are_those_that_the_model_reads(tokens: httpx.Client) -> None:
    own = own_ids(framed(), TEXT)
    assert tokenize(tokens, "framed classify", TEXT)["tokens"] == [0, *own, 1]
    assert tokenize(tokens, "framed", TEXT)["tokens"] == [0, *own]  # a prompt goes on
    plain = tokenize(tokens, "framed classify", TEXT, add_special_tokens=False)
    assert plain["tokens"] == own
    body = {"model": "framed", "max_tokens": 5, "seed": 3}
    texts = [
        tokens.post("/v1/completions", json=body | {"prompt": prompt}).json()["choices"][0]["text"]
        for prompt in (TEXT, [0, *own])
    ]
    assert texts[0] == texts[1]


def test_a_truncated_text_says_how_much_the_model_reads(tokens: httpx.Client) -> None:
    answer = tokenize(tokens, "truncated classify", TEXT)
    assert answer["tokens"] == truncated().encode(TEXT).ids
    assert (answer["count"], answer["max_model_len"]) == (6, 6)
    assert len(tokenize(tokens, "truncated", TEXT, add_special_tokens=False)["tokens"]) == 4


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param", "because"),
    [
        ("/tokenize", {}, 422, "invalid_request", "prompt", "missing"),
        ("/tokenize", {"input": "a"}, 422, "invalid_request", "prompt", "as 'prompt'"),
        ("/tokenize", {"prompt": ["a"]}, 422, "invalid_request", "prompt", "valid string"),
        ("/tokenize", {"prompt": "a", "state": "b"}, 422, "invalid_request", "state", "unknown"),
        (
            "/tokenize", {"prompt": "a", "add_special_tokens": 1},
            422, "invalid_request", "add_special_tokens", "boolean",
        ),
        ("/tokenize", {"prompt": "a", "model": "no"}, 404, "model_not_found", "model", "no"),
        ("/tokenize", {"prompt": "a", "model": "ids"}, 422, "invalid_request", "prompt", "ids"),
        ("/tokenize", {"prompt": "a", "model": None}, 422, "invalid_request", "model", "choose"),
        ("/tokenize", {"prompt": "\x05"}, 422, "invalid_text", "prompt", "0x05"),
        ("/detokenize", {}, 422, "invalid_request", "tokens", "missing"),
        ("/detokenize", {"tokens": [-1]}, 422, "invalid_request", "tokens", "-1"),
        ("/detokenize", {"tokens": [2**70]}, 422, "invalid_request", "tokens", "ids of"),
        ("/detokenize", {"tokens": ["a"]}, 422, "invalid_request", "tokens", "integer"),
        ("/detokenize", {"tokens": [1], "model": "ids"}, 422, "invalid_request", "tokens", "ids"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(
    client: httpx.Client,
    path: str,
    body: dict[str, Any],
    status: int,
    code: str,
    param: str,
    because: str,
) -> None:
    reply = client.post(path, json={"model": "characters"} | body)
    assert because in refusal(reply, status, code, param)


def test_a_text_and_a_reply_are_bounded(serve: Serve) -> None:
    with serve("characters", max_input_bytes=1000, max_body_bytes=2000) as (client, application):

        def post(path: str, **body: Any) -> httpx.Response:
            content = json.dumps(body, separators=(",", ":"))
            return client.post(path, content=content)

        refusal(post("/tokenize", prompt="a" * 1001), 422, "input_too_long", "prompt")
        refusal(post("/detokenize", tokens=[1] * 1001), 413, "body_too_large")
        assert post("/tokenize", prompt="a" * 250).is_success
        reply = post("/tokenize", prompt="a" * 250, return_token_strs=True)
        assert "750 numbers" in refusal(reply, 422, "input_too_long")
        long = post("/detokenize", tokens=[1] * 900)
        assert long.json() == {"prompt": " " * 900}
        until(lambda: application.limits.replies.used == 0)


def test_the_text_of_ids_counts_before_it_is_made(serve: Serve, tmp_path: Path) -> None:
    word = "a" * 1000
    tokenizer = Tokenizer(models.WordLevel({"<oov>": 0, word: 1}, unk_token="<oov>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    save_random_model(tmp_path / "long", vocabulary=tokenizer.to_str().encode(), vocab_size=2)
    with serve(models=tmp_path, model_folders=(), max_body_bytes=80_000) as (client, _):
        text = client.post("/detokenize", json={"tokens": [1] * 39}).json()["prompt"]
        assert text.split() == [word] * 39
        reply = client.post("/detokenize", json={"tokens": [1] * 41})
        refusal(reply, 422, "input_too_long")


def test_both_routes_need_a_key_and_count_for_its_rate(serve: Serve) -> None:
    keys = json.dumps([{"key": ACME, "requests_per_second": 2}])
    with serve("characters", api_keys=keys, clock=HandClock()) as (client, _):
        for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
            refusal(client.post(path, json=body, headers=bearer(OTHER)), 401, "invalid_api_key")
            labels = f'{{model="characters",outcome="ok",route="{path}"}}'
            before = metric(client, f"sru_requests_total{labels}")
            assert client.post(path, json=body, headers=bearer(ACME)).is_success
            assert metric(client, f"sru_requests_total{labels}") == before + 1
        refusal(client.post("/tokenize", json=body, headers=bearer(ACME)), 429, "rate_limited")
