"""OpenAI's own client, sync and async, against a running server."""

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion

from tests.server.conftest import CHARACTERS, Serve
from tests.server.hand_clock import HandClock
from tests.server.keys import ACME, OTHER
from tests.server.observing import metric, until

PROMPT = "To be, or not"


def connect(client: httpx.Client, key: str = "unused", **options: Any) -> openai.OpenAI:
    """OpenAI's client of the same server."""
    options = {"max_retries": 0} | options
    return openai.OpenAI(base_url=f"{client.base_url}/v1", api_key=key, **options)


@pytest.fixture(scope="module")
def connected(client: httpx.Client) -> Iterator[openai.OpenAI]:
    with connect(client) as connected_client:
        yield connected_client


def with_defaults(**options: Any) -> dict[str, Any]:
    return {"model": "characters", "prompt": PROMPT, "max_tokens": 20, "seed": 1} | options


def create(client: openai.OpenAI, **options: Any) -> Completion:
    answer: Completion = client.completions.create(**with_defaults(**options))
    return answer


def chunks(client: openai.OpenAI, **options: Any) -> list[Completion]:
    """All chunks of a stream."""
    return list(client.completions.create(stream=True, **with_defaults(**options)))


def text_of(parts: list[Completion], index: int = 0) -> str:
    """The text of one choice."""
    return "".join(c.text for part in parts for c in part.choices if c.index == index)


def test_a_completion(connected: openai.OpenAI) -> None:
    answer = create(connected)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (13, 20)
    assert answer.usage.total_tokens == 33


def test_the_example_of_the_documentation_runs(client: httpx.Client) -> None:
    page = Path("docs/completions.md").read_text()
    code = page.split("```python")[1].split("```")[0]
    code = code.replace("http://127.0.0.1:8000", str(client.base_url))
    names: dict[str, Any] = {}
    exec(code.replace("shakespeare", "characters"), names)
    with names["client"] as connected:
        known = {"prompt": "", "max_tokens": 200, "seed": openai.omit}
        more = create(connected, extra_body={"state": names["first"].state}, **known)
    assert names["more"].choices[0].text == more.choices[0].text


def test_a_stream_is_the_same_text_and_ends_with_its_usage(connected: openai.OpenAI) -> None:
    whole = create(connected, max_tokens=300)
    *parts, usage = chunks(connected, max_tokens=300, stream_options={"include_usage": True})
    assert text_of(parts) == whole.choices[0].text
    reasons: list[str | None] = [part.choices[0].finish_reason for part in parts]
    assert reasons == [None] * (len(parts) - 1) + ["length"]
    assert len({part.id for part in (*parts, usage)}) == 1
    assert usage.choices == []
    assert usage.usage == whole.usage


def test_the_async_client_reads_many_streams_at_once(
    client: httpx.Client, connected: openai.OpenAI
) -> None:
    async def read(client: openai.AsyncOpenAI, seed: int) -> tuple[str, Any]:
        stream = await client.completions.create(
            model="characters", prompt=PROMPT, max_tokens=60, seed=seed, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        parts = [part async for part in stream]
        return text_of(parts), parts[-1].usage

    async def all_streams() -> list[tuple[str, Any]]:
        async with openai.AsyncOpenAI(
            base_url=f"{client.base_url}/v1", api_key="unused"
        ) as async_client:
            return await asyncio.gather(*(read(async_client, seed) for seed in range(8)))

    alone = [create(connected, max_tokens=60, seed=seed) for seed in range(8)]
    expected = [(answer.choices[0].text, answer.usage) for answer in alone]
    assert asyncio.run(all_streams()) == expected


def test_the_offsets_of_logprobs_continue_over_chunks(connected: openai.OpenAI) -> None:
    options = {"max_tokens": 200, "logprobs": 2, "model": "words", "prompt": "How far"}
    parts = chunks(connected, **options)
    whole = create(connected, **options).choices[0]
    assert len(parts) > 1
    tokens: list[str] = []
    offsets: list[int] = []
    for part in parts:
        logprobs = part.choices[0].logprobs
        assert logprobs is not None
        tokens += logprobs.tokens or []
        offsets += logprobs.text_offset or []
    text = text_of(parts)
    for token, offset, end in zip(tokens, offsets, [*offsets[1:], len(text)], strict=True):
        assert text[offset:end] == token
    assert whole.logprobs is not None
    assert (whole.logprobs.tokens, whole.logprobs.text_offset) == (tokens, offsets)


def test_n_choices_differ_and_match_the_seed(connected: openai.OpenAI) -> None:
    four = create(connected, n=4, max_tokens=30).choices
    assert len({each.text for each in four}) == 4
    assert four[0].text == create(connected, max_tokens=30).choices[0].text
    parts = chunks(connected, n=4, max_tokens=30)
    assert [text_of(parts, index) for index in range(4)] == [each.text for each in four]


def test_a_state_continues_a_completion_and_says_what_it_spared(connected: openai.OpenAI) -> None:
    whole = create(connected, max_tokens=40).choices[0].text
    first = create(connected, max_tokens=15, extra_body={"return_state": True}).choices[0]
    state = first.state
    rest = create(
        connected, prompt="", max_tokens=25, seed=openai.omit, extra_body={"state": state}
    )
    assert first.text + rest.choices[0].text == whole
    assert rest.usage is not None
    assert rest.usage.prompt_tokens == 0
    assert rest.usage.prompt_tokens_details is not None  # the last token is known, not consumed
    assert rest.usage.prompt_tokens_details.cached_tokens == 13 + 15 - 1


@pytest.mark.parametrize("prompt", [PROMPT, [1, 2, 3], [PROMPT, "How far"]], ids=repr)
def test_an_echo_puts_the_prompt_before_the_text(connected: openai.OpenAI, prompt: Any) -> None:
    plain = create(connected, prompt=prompt, n=2).choices
    parts = chunks(connected, prompt=prompt, n=2, echo=True)
    echoed = create(connected, prompt=prompt, n=2, echo=True).choices
    before = create(connected, prompt=prompt, n=2, echo=True, max_tokens=0).choices
    for index, choice in enumerate(plain):
        text = before[index].text
        assert text == prompt or isinstance(prompt, list)
        assert echoed[index].text == text + choice.text
        assert text_of(parts, index) == text + choice.text


@pytest.mark.parametrize("prompt", [PROMPT, "é", [*range(40, 60), *range(150, 170)]], ids=repr)
def test_the_logprobs_of_an_echo_begin_with_those_of_the_prompt(
    connected: openai.OpenAI, prompt: Any
) -> None:
    plain = create(connected, prompt=prompt, logprobs=2).choices[0].logprobs
    whole = create(connected, prompt=prompt, logprobs=2, echo=True, n=2).choices
    parts = chunks(connected, prompt=prompt, logprobs=2, echo=True, n=2)
    text, logprobs = whole[0].text, whole[0].logprobs
    assert plain is not None
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.text_offset is not None
    count = len(logprobs.tokens) - 20
    first: list[Any] = [logprobs.token_logprobs[0], (logprobs.top_logprobs or [{}])[0]]
    assert first == [None, None]
    assert None not in logprobs.token_logprobs[1:]
    assert logprobs.tokens[count:] == plain.tokens
    assert logprobs.token_logprobs[count:] == plain.token_logprobs
    assert len(logprobs.text_offset) == len(logprobs.top_logprobs or []) == count + 20
    assert logprobs.text_offset == sorted(logprobs.text_offset)
    for (before, token), offset in zip(
        pairwise(["", *logprobs.tokens]), logprobs.text_offset, strict=True
    ):
        if "bytes:" not in before + token:  # those are parts of a character
            assert text[offset:].startswith(token)
    joined = [part.choices[0].logprobs for part in parts if part.choices[0].index == 0]
    assert [
        t for each in joined if each for t in each.token_logprobs or []
    ] == logprobs.token_logprobs


def test_max_tokens_0_with_an_echo_scores_a_prompt(
    client: httpx.Client, connected: openai.OpenAI
) -> None:
    def score(text: str, **state: Any) -> float:
        body = {"model": "characters", "input": text} | state
        log_likelihood: float = client.post("/v1/score", json=body).json()["results"][0][
            "log_likelihood"
        ]
        return log_likelihood

    options: dict[str, Any] = {"max_tokens": 0, "echo": True, "logprobs": 1}
    alone = create(connected, prompt=[PROMPT, "How far"], **options).choices
    for choice, text in zip(alone, (PROMPT, "How far"), strict=True):
        assert choice.text == text
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs is not None
        assert sum(choice.logprobs.token_logprobs[1:]) == pytest.approx(score(text))
    state = create(connected, extra_body={"return_state": True}).choices[0].state
    body = {"extra_body": {"state": state}}
    behind = create(connected, prompt=PROMPT, **options, **body).choices[0].logprobs
    assert behind is not None
    assert behind.token_logprobs is not None  # the first one has something before it, too
    assert len(behind.token_logprobs) == len(PROMPT)
    assert sum(behind.token_logprobs) == pytest.approx(score(PROMPT, state=state))


def test_an_echo_follows_what_an_earlier_request_held_back(connected: openai.OpenAI) -> None:
    text = create(connected, max_tokens=6).choices[0].text
    body = {"return_state": True}
    first = create(connected, max_tokens=6, stop=text[-1] + "never", extra_body=body).choices[0]
    state = first.state
    rest = create(connected, prompt="XY", echo=True, extra_body={"state": state}).choices[0]
    assert (first.text + rest.text).startswith(text + "XY")


def test_token_ids_are_sent_on_request(connected: openai.OpenAI) -> None:
    answer = create(connected, logprobs=0, extra_body={"return_token_ids": True}).choices[0]
    again = create(connected, prompt=answer.token_ids, echo=True, max_tokens=0)
    assert again.choices[0].text == answer.text


def ids_of(client: openai.OpenAI, **options: Any) -> list[int]:
    body = {"return_token_ids": True} | options.pop("extra_body", {})
    answer = create(client, extra_body=body, **{"max_tokens": 60} | options)
    token_ids: list[int] = answer.choices[0].token_ids
    return token_ids


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_ban_never_appears_and_a_high_bias_forces(
    connected: openai.OpenAI, temperature: float
) -> None:
    banned = set(ids_of(connected, temperature=temperature))
    bias = dict.fromkeys(map(str, banned), -100)
    assert not banned & set(ids_of(connected, temperature=temperature, logit_bias=bias))
    assert set(ids_of(connected, temperature=temperature, logit_bias={"5": 100})) == {5}
    allowed = {"allowed_token_ids": [7, 9, 7]}
    assert set(ids_of(connected, temperature=temperature, extra_body=allowed)) <= {7, 9}


def test_a_ban_is_one_at_any_temperature(connected: openai.OpenAI) -> None:
    bias = {str(token): -100 for token in range(2, len(CHARACTERS))}
    assert set(ids_of(connected, temperature=10, logit_bias=bias, max_tokens=1000)) == {0, 1}


def test_penalties_make_a_text_less_repetitive(connected: openai.OpenAI) -> None:
    def repeats(**penalty: float) -> int:
        return sum(60 - len(set(ids_of(connected, seed=seed, **penalty))) for seed in range(2))

    assert repeats(frequency_penalty=2) < repeats() < repeats(frequency_penalty=-2)
    assert repeats(presence_penalty=2) < repeats() < repeats(presence_penalty=-2)


def test_the_models_are_listed_and_described(connected: openai.OpenAI) -> None:
    listed = connected.models.list().data
    assert [model.id for model in listed][:1] == ["characters"]
    assert connected.models.retrieve("characters") == listed[0]
    with pytest.raises(openai.NotFoundError) as caught:
        connected.models.retrieve("absent")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("options", "error", "code", "param"),
    [
        ({"model": "absent"}, openai.NotFoundError, "model_not_found", "model"),
        ({"temperature": -1}, openai.UnprocessableEntityError, "invalid_request", "temperature"),
        ({"prompt": ""}, openai.UnprocessableEntityError, "empty_input", "prompt"),
        (
            {"logit_bias": {"999": 1}},
            openai.UnprocessableEntityError, "invalid_request", "logit_bias",
        ),
        (
            {"logit_bias": {str(i): -100 for i in range(len(CHARACTERS))}},
            openai.UnprocessableEntityError, "invalid_request", "logit_bias",
        ),
        (
            {"extra_body": {"preset": "absent"}},
            openai.NotFoundError, "preset_not_found", "preset",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_mistakes_raise_the_clients_own_errors(
    connected: openai.OpenAI,
    options: dict[str, Any],
    error: type[openai.APIStatusError],
    code: str,
    param: str | None,
    stream: bool,
) -> None:
    with pytest.raises(error) as caught:
        (chunks if stream else create)(connected, **options)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_a_body_that_is_no_json_is_a_bad_request(connected: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        connected.post("/completions", cast_to=Completion, content=b"{")
    assert caught.value.code == "malformed_body"


def test_keys_and_their_limits_raise_the_clients_own_errors(serve: Serve) -> None:
    keys = f'[{{"tenant":"acme","key":"{ACME}","requests_per_second":2}},{{"key":"{OTHER}"}}]'
    clock, replies = HandClock(), list[httpx.Response]()

    def come_again(reply: httpx.Response) -> None:
        """The time passes that a client is asked to wait."""
        replies.append(reply)
        clock.now += float(reply.headers.get("retry-after", 0))

    with (
        serve("characters", api_keys=keys, state_keys="a" * 64, clock=clock) as (client, _),
        connect(client, ACME) as mine,
        connect(client, OTHER) as others,
        connect(client, "unknown") as unknown,
    ):
        with pytest.raises(openai.AuthenticationError):
            create(unknown)
        answer = create(mine, extra_body={"return_state": True})
        state = answer.choices[0].state
        with pytest.raises(openai.PermissionDeniedError):
            create(others, extra_body={"state": state})
        create(mine)
        with pytest.raises(openai.RateLimitError) as caught:
            create(mine)
        assert caught.value.code == "rate_limited"
        http = openai.DefaultHttpxClient(event_hooks={"response": [come_again]})
        answer = create(mine.with_options(max_retries=1, http_client=http))
        http.close()
        assert answer.choices[0].text == create(others).choices[0].text
        assert [reply.status_code for reply in replies] == [429, 200]
        assert replies[0].headers["retry-after"] == "1"


def test_the_client_retries_until_a_full_queue_has_room(serve: Serve) -> None:
    with serve("characters", max_queue_requests=1, max_batch_tokens=8) as (client, application):
        engine = application.lifecycle.catalogue.with_states("characters").engine
        with connect(client, max_retries=20) as patient, ThreadPoolExecutor(1) as pool:
            first = pool.submit(create, patient, prompt="a" * 20_000)
            until(lambda: engine.waiting == 1)
            for ask in (create, chunks):
                with pytest.raises(openai.RateLimitError) as caught:
                    ask(patient.with_options(max_retries=0))
                assert caught.value.code == "overloaded"
            assert text_of(chunks(patient)) == create(patient).choices[0].text
            assert first.result().choices
        refused = 'sru_requests_total{model="characters",outcome="refused",route="/v1/completions"}'
        assert metric(client, refused) >= 3


def test_an_error_in_the_middle_of_a_stream_is_raised_after_the_text(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("the network fails")

    with serve("characters") as (client, application), connect(client) as connected:
        served = application.lifecycle.catalogue.with_states("characters")
        stream = connected.completions.create(
            model="characters", prompt=PROMPT, max_tokens=50_000, stream=True
        )
        text = next(text for part in stream if (text := part.choices[0].text))
        with monkeypatch.context() as patch:
            patch.setattr(served.model.network, "logits", broken)
            with pytest.raises(openai.APIError) as caught:
                text_of(list(stream))
        assert text
        assert type(caught.value) is openai.APIError
        assert caught.value.code == "engine_failure"
        assert "network fails" not in caught.value.message
        assert create(connected).choices[0].text


def test_a_clients_id_of_its_request_is_returned(connected: openai.OpenAI) -> None:
    def request_id(options: str) -> str | None:
        headers = {"x-request-id": options}
        raw = connected.completions.with_raw_response.create(
            model="characters", prompt="a", extra_headers=headers
        )
        request_id: str | None = raw.request_id
        return request_id

    assert request_id("mine-42") == "mine-42"
    for bad in ("a b", "x" * 129, "a\tb"):
        assert re.fullmatch(r"[0-9a-f]{32}", request_id(bad) or "")
