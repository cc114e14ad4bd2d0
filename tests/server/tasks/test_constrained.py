"""Completions that match a regular expression or a JSON schema."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.server.conftest import Serve, words_vocabulary
from tests.server.posting import refusal
from tests.server.test_openai import chunks, connect, create, text_of
from tests.support import save_random_model

AGE = {"type": "integer", "minimum": 0, "maximum": 99}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["cat", "dog", None]},
        "ages": {"type": "array", "items": AGE, "maxItems": 3},
    },
    "required": ["name", "kind", "ages"],
    "additionalProperties": False,
}
DATE = r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]"


@pytest.fixture(scope="module")
def writers(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Models of all bytes, of small letters only, and of words."""
    parent = tmp_path_factory.mktemp("writers")
    save_random_model(parent / "bytes", vocabulary=list(range(256)))
    save_random_model(parent / "letters", vocabulary=list(range(97, 123)))
    save_random_model(parent / "words", vocabulary=words_vocabulary(), vocab_size=16)
    with serve(models=parent, model_folders=(), state_keys="a" * 64) as (client, _):
        yield client


def complete(client: httpx.Client, **body: Any) -> dict[str, Any]:
    """The only choice of a completion."""
    known = {"model": "bytes", "prompt": "a", "seed": 1, "max_tokens": 100}
    reply = client.post("/v1/completions", json=known | body)
    assert reply.status_code == 200, reply.text
    first_choice: dict[str, Any] = reply.json()["choices"][0]
    return first_choice


def refused(client: httpx.Client, code: str, param: str | None, **body: Any) -> str:
    reply = client.post("/v1/completions", json={"model": "bytes", "prompt": "a"} | body)
    return refusal(reply, 422, code, param)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pattern", [DATE, r"[a-f]{3,9}!", r"(yes|no|maybe)", r"é{2}[^\x00-\xff]"])
def test_the_text_matches_the_regex_as_a_whole(
    writers: httpx.Client, pattern: str, seed: int
) -> None:
    choice = complete(writers, regex=pattern, seed=seed)
    assert re.fullmatch(pattern, choice["text"])
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)


def check_schema(text: str) -> None:
    value = json.loads(text)
    assert list(value) == ["name", "kind", "ages"]
    assert isinstance(value["name"], str)
    assert len(value["name"]) <= 6
    assert value["kind"] in ("cat", "dog", None)
    assert all(0 <= age <= 99 for age in value["ages"])
    assert len(value["ages"]) <= 3


@pytest.mark.parametrize("seed", range(6))
def test_the_text_is_json_of_the_schema(writers: httpx.Client, seed: int) -> None:
    choice = complete(writers, json_schema=SCHEMA, seed=seed, max_tokens=300)
    assert choice["finish_reason"] == "stop"
    check_schema(choice["text"])


def test_openais_client_asks_for_a_schema_in_openais_way(writers: httpx.Client) -> None:
    named = {
        "type": "json_schema",
        "json_schema": {"name": "pet", "strict": True, "schema": SCHEMA},
    }
    with connect(writers) as client:
        bare = create(client, model="bytes", max_tokens=300, extra_body={"json_schema": SCHEMA})
        framed = create(
            client, model="bytes", max_tokens=300, extra_body={"response_format": named}
        )
    check_schema(bare.choices[0].text)
    assert framed.choices[0].text == bare.choices[0].text
    choice = complete(writers, response_format={"type": "json_object"}, max_tokens=20)
    assert choice["text"].startswith("{")
    free = complete(writers, max_tokens=20)
    assert complete(writers, response_format={"type": "text"}, max_tokens=20) == free


def test_a_stream_has_the_text_of_the_whole(writers: httpx.Client) -> None:
    whole = complete(writers, json_schema=SCHEMA, max_tokens=300)["text"]
    with connect(writers) as client:
        body = {"json_schema": SCHEMA}
        parts = chunks(client, model="bytes", prompt="a", max_tokens=300, extra_body=body)
    assert text_of(parts) == whole


@pytest.mark.parametrize(
    "constraint", [{"regex": DATE}, {"json_schema": SCHEMA}], ids=["regex", "json_schema"]
)
def test_the_place_in_the_constraint_is_part_of_the_state(
    writers: httpx.Client, constraint: dict[str, Any]
) -> None:
    body: dict[str, Any] = constraint | {"return_state": True}
    whole = complete(writers, max_tokens=300, **body)["text"]
    for cut in (1, 5, len(whole) - 1):
        first = complete(writers, max_tokens=cut, **body)
        assert first["finish_reason"] == "length"
        assert whole.startswith(first["text"])
        again = {"prompt": "", "state": first["state"], "seed": None}
        rest = complete(writers, max_tokens=300, **body | again)
        assert first["text"] + rest["text"] == whole
    over = complete(writers, **body | {"prompt": "", "state": rest["state"], "seed": None})
    assert (over["text"], over["finish_reason"]) == ("", "stop")


def test_after_a_prompt_a_constraint_begins_anew(writers: httpx.Client) -> None:
    state = complete(writers, regex=DATE, max_tokens=3, return_state=True)["state"]
    again = complete(writers, regex=DATE, prompt=" or ", state=state)
    assert re.fullmatch(DATE, again["text"])


def test_a_stop_string_ends_a_match_and_min_tokens_do_not_lengthen_it(
    writers: httpx.Client,
) -> None:
    cut = complete(writers, regex=DATE, stop="-")
    assert re.fullmatch(r"(19|20)[0-9]{2}", cut["text"])
    assert cut["stop_reason"] == "-"
    full = complete(writers, regex=DATE, stop="-", min_tokens=100)
    assert re.fullmatch(DATE, full["text"])
    assert len(full["text"]) == 10


def test_what_the_model_cannot_spell_is_unsatisfiable(writers: httpx.Client) -> None:
    refused(writers, "constraint_unsatisfiable", "regex", model="letters", regex="[0-9]+")
    refused(writers, "constraint_unsatisfiable", "json_schema", model="letters", json_schema=SCHEMA)
    refused(writers, "constraint_unsatisfiable", "json_schema", json_schema=False)
    assert complete(writers, model="letters", regex="[0-9]|no")["text"] == "no"


def test_a_search_that_is_too_long_is_not_called_unsatisfiable(writers: httpx.Client) -> None:
    text = {"type": "string", "pattern": "a/b", "maxLength": 20}
    assert "a/b" in json.loads(complete(writers, json_schema=text)["text"])
    long = {"type": "string", "minLength": 10_000}
    message = refused(writers, "invalid_request", "json_schema", json_schema=long)
    assert "takes too many steps" in message


def test_constraints_that_cannot_be_followed_are_refused(writers: httpx.Client) -> None:
    refused(writers, "invalid_request", "regex", regex="(")
    refused(writers, "invalid_request", "regex", regex="a" * 10_000)
    refused(writers, "invalid_request", "json_schema", json_schema={"pattern": 5, "type": "string"})
    broken = {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/absent"}}}
    refused(writers, "invalid_request", "response_format", response_format=broken)
    refused(writers, "constraint_unsupported", "regex", model="words", regex="a")
    refused(writers, "invalid_request", "logit_bias", regex="a", logit_bias={"97": -100})
    refused(writers, "invalid_request", "allowed_token_ids", regex="a", allowed_token_ids=[97])
    assert complete(writers, regex="[a-z]{5}", logit_bias={"113": 100})["text"] == "qqqqq"


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ({"regex": "("}, "the regex cannot be used: unclosed group; change it"),
        ({"regex": "a" * 400 + "("}, "the regex cannot be used: unclosed group; change it"),
        ({"regex": "error: [z-a]"}, "the regex cannot be used: invalid character class range, the"),
        (
            {"json_schema": {"type": "text"}},
            "the JSON schema cannot be used: Invalid type: text; change it",
        ),
        (
            {"json_schema": {"type": "string", "pattern": "("}},
            "the regex in 'pattern' cannot be used: unclosed group; change it",
        ),
        (
            {"regex": "(a{1000}){1000}"},
            "the regex or schema cannot be followed: fuel exhausted when checking relevance of "
            "lexemes (1000000); correct or simplify it",
        ),
    ],
    ids=str,
)
def test_a_wrong_constraint_gets_the_reason_alone(
    writers: httpx.Client, constraint: dict[str, Any], message: str
) -> None:
    reason = refused(writers, "invalid_request", next(iter(constraint)), **constraint)
    assert reason.startswith(message)
    assert "(?:" not in reason


def test_a_constraint_is_compiled_once_for_all_who_ask_together(writers: httpx.Client) -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = {pool.submit(complete, writers, regex="[xyz]{7}", seed=3) for _ in range(8)}
        assert len({each.result()["text"] for each in texts}) == 1


ASKS: list[dict[str, Any]] = [
    {"regex": "a"},
    {"json_schema": SCHEMA},
    {"response_format": {"type": "json_object"}},
]


def test_without_llguidance_constraints_alone_are_refused(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)  # as where it is not installed
    with serve("characters") as (client, _):
        for constraint in ASKS:
            reply = client.post("/v1/completions", json={"prompt": "a", **constraint})
            message = refusal(reply, 501, "grammars_need_llguidance", next(iter(constraint)))
            assert "sruserve[grammars]" in message
            assert reply.headers["x-should-retry"] == "false"
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200


def test_the_server_does_not_import_llguidance() -> None:
    code = "import sys; sys.modules['llguidance'] = None; import sruserve.server.app"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
