"""OpenAI's Responses API with OpenAI's own client: texts, events, chains, forks and refusals."""

import asyncio
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from sruserve.server.http.responses_api.reply import ResponseEvent, ResponsesReply
from tests.server.conftest import Serve
from tests.server.hand_clock import HandClock
from tests.server.held_steps import Steps
from tests.server.keys import ACME, OTHER, bearer
from tests.server.observing import metric, until
from tests.server.posting import refusal
from tests.server.processes import ended, serving
from tests.server.slow_server import slow_server
from tests.server.test_openai import connect

PROMPT = "To be, or not"


@pytest.fixture(scope="module")
def connected(client: httpx.Client) -> Iterator[openai.OpenAI]:
    with connect(client) as connected_client:
        yield connected_client


def with_defaults(**options: Any) -> dict[str, Any]:
    return {
        "model": "characters", "input": PROMPT, "max_output_tokens": 20, "extra_body": {"seed": 1}
    } | options  # fmt: skip


def create(client: openai.OpenAI, **options: Any) -> Response:
    answer: Response = client.responses.create(**with_defaults(**options))
    return answer


def continued(client: openai.OpenAI, before: Response, **options: Any) -> Response:
    """What follows a response, with its own seed."""
    later = {"input": "", "previous_response_id": before.id, "extra_body": {}}
    return create(client, **{**later, **options})


def completion(client: openai.OpenAI, prompt: str = PROMPT, tokens: int = 20, **body: Any) -> str:
    """The text of a completion, whose end state keeps an unfinished character."""
    options: Any = {"seed": 1, "return_state": True} | body
    answer = client.completions.create(
        model="characters", prompt=prompt, max_tokens=tokens, extra_body=options
    )
    return str(answer.choices[0].text)


def events_of(client: openai.OpenAI, **options: Any) -> list[Any]:
    return list(client.responses.create(stream=True, **with_defaults(**options)))


def test_a_response_has_the_text_of_a_completion(
    client: httpx.Client, connected: openai.OpenAI
) -> None:
    answer = create(connected, metadata={"topic": "plays"}, temperature=0.5, top_p=0.9)
    assert answer.object == "response"
    assert answer.metadata == {"topic": "plays"}
    assert (answer.temperature, answer.top_p, answer.max_output_tokens) == (0.5, 0.9, 20)
    plain = create(connected)
    assert plain.output_text == completion(connected)
    assert plain.output_text != answer.output_text
    assert plain.usage is not None
    assert (plain.usage.input_tokens, plain.usage.output_tokens) == (13, 20)
    assert (plain.usage.total_tokens, plain.usage.input_tokens_details.cached_tokens) == (33, 0)
    body = with_defaults()
    del body["extra_body"]
    reply = client.post("/v1/responses", json=body)
    ResponsesReply.model_validate_json(reply.content, strict=True)


def test_a_text_that_ends_at_its_length_is_incomplete(connected: openai.OpenAI) -> None:
    answer = create(connected)
    assert answer.status == answer.output[0].status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    unlimited = create(connected, max_output_tokens=openai.omit)
    assert unlimited.usage is not None
    assert unlimited.usage.output_tokens == unlimited.max_output_tokens == 256


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_chain_of_responses_is_one_long_completion(
    connected: openai.OpenAI, stream: bool
) -> None:
    whole = completion(connected, tokens=60)
    answer, text = create(connected), ""
    for cached in (0, 13 + 20 - 1, 13 + 40 - 1):  # the last token is known, not consumed
        text += answer.output_text
        assert answer.usage is not None
        assert answer.usage.input_tokens_details.cached_tokens == cached
        assert answer.usage.input_tokens == (cached or 13)
        if stream:
            later = {"input": "", "previous_response_id": answer.id, "extra_body": {}}
            answer = events_of(connected, **later)[-1].response
        else:
            answer = continued(connected, answer)
    assert text == whole


def test_two_continuations_fork_a_response(connected: openai.OpenAI) -> None:
    first = create(connected)
    words = (" and now", "\nHAMLET:")
    for word in words:
        fork = continued(connected, first, input=word)
        state: dict[str, Any] = {"state": first.id.removeprefix("resp_"), "seed": None}
        assert fork.output_text == completion(connected, word, **state)
    same = {continued(connected, first).output_text for _ in range(2)}
    assert len(same) == 1
    other = continued(connected, first, extra_body={"seed": 2}).output_text
    assert other not in same


def test_the_stream_has_the_events_and_the_text_of_the_whole(
    client: httpx.Client, connected: openai.OpenAI
) -> None:
    whole = create(connected, max_output_tokens=300)
    events = events_of(connected, max_output_tokens=300)
    types = [event.type for event in events]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert types == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added", *["response.output_text.delta"] * len(deltas),
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "response.completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = whole.output_text
    assert "".join(event.delta for event in deltas) == text
    done, part, item, completed = events[-4:]
    assert (done.text, part.part.text, item.item.content[0].text) == (text, text, text)
    assert {event.item_id for event in (*deltas, done, part)} == {item.item.id}
    assert completed.response.output_text == text
    assert completed.response.usage == whole.usage
    assert completed.response.status == "incomplete"
    assert len(events[0].response.id) < 40 < len(completed.response.id)
    body = with_defaults(stream=True)
    body |= body.pop("extra_body")
    reply = client.post("/v1/responses", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    for block in reply.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = ResponseEvent.model_validate_json(data.removeprefix("data: "), strict=True)
        assert name == f"event: {event.type}"


def test_the_clients_stream_helper_gives_the_final_response(connected: openai.OpenAI) -> None:
    options = with_defaults(max_output_tokens=100)
    stable: Any = {"stream_options": {"stable_id": True}}
    with connected.responses.stream(**options, **stable) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    whole = create(connected, max_output_tokens=100)
    assert final.output_text == "".join(deltas) == whole.output_text
    with pytest.raises(openai.UnprocessableEntityError, match="`state_id`"):
        continued(connected, final)
    later = {"previous_response_id": final.state_id}
    rest = continued(connected, final, **later)
    assert rest.output_text == continued(connected, whole).output_text
    with connected.responses.stream(**options, store=False) as stream:
        assert stream.get_final_response().output_text.startswith(whole.output_text)


def test_the_async_client_reads_many_at_once(
    client: httpx.Client, connected: openai.OpenAI
) -> None:
    async def ask(client: openai.AsyncOpenAI, seed: int) -> tuple[str, str]:
        options: Any = with_defaults(extra_body={"seed": seed})
        whole = await client.responses.create(**options)
        text = ""
        async for event in await client.responses.create(stream=True, **options):
            if event.type == "response.output_text.delta":
                text += event.delta
        return str(whole.output_text), text

    async def all_of_them() -> list[tuple[str, str]]:
        url = f"{client.base_url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="unused") as async_client:
            return await asyncio.gather(*(ask(async_client, seed) for seed in range(8)))

    alone = [create(connected, extra_body={"seed": seed}).output_text for seed in range(8)]
    assert asyncio.run(all_of_them()) == [(text, text) for text in alone]


def test_messages_and_instructions_are_joined_by_line_breaks(connected: openai.OpenAI) -> None:
    messages = [
        {"role": "system", "content": "A play."},
        {
            "type": "message", "role": "user",
            "content": [
                {"type": "input_text", "text": "To be"}, {"type": "input_text", "text": ", or"}
            ],
        },
    ]  # fmt: skip
    joined = create(connected, input=messages, instructions="Go on:").output_text
    assert joined == completion(connected, "Go on:\nA play.\nTo be, or")
    answer = create(connected, input="To be")
    again = [*answer.output, {"role": "user", "content": "!"}]
    assert create(connected, input=again).output_text == completion(
        connected, answer.output_text + "\n!"
    )


def test_a_response_that_is_not_stored_has_a_short_id_that_does_not_continue(
    connected: openai.OpenAI,
) -> None:
    answer = create(connected, store=False)
    assert len(answer.id) < 40
    assert answer.output_text == completion(connected, return_state=False)
    begun = events_of(connected)[0].response
    for response in (answer, begun):
        with pytest.raises(openai.UnprocessableEntityError, match="no state") as caught:
            continued(connected, response)
        assert (caught.value.code, caught.value.param) == (
            "invalid_request", "previous_response_id",
        )  # fmt: skip


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "a"}] * 1025,
        [{"role": "user", "content": [{"type": "input_text", "text": "a"}] * 32}] * 32,
    ],
    ids=["messages", "parts"],
)
def test_the_number_of_messages_and_parts_is_bounded(
    client: httpx.Client, messages: list[Any]
) -> None:
    body = {"model": "characters", "max_output_tokens": 1}
    reply = client.post("/v1/responses", json=body | {"input": messages})
    assert "at most 1024" in refusal(reply, 422, "invalid_request", "input")
    assert client.post("/v1/responses", json=body | {"input": messages[1:-1]}).is_success


class Answer(BaseModel):
    fits: bool


def test_a_schema_makes_a_complete_response(connected: openai.OpenAI) -> None:
    options: Any = with_defaults(max_output_tokens=40)
    parsed = connected.responses.parse(text_format=Answer, **options)
    assert parsed.status == "completed"
    assert parsed.incomplete_details is None
    assert isinstance(parsed.output_parsed, Answer)


def test_an_id_that_was_changed_or_cut_is_refused(
    client: httpx.Client, connected: openai.OpenAI
) -> None:
    answer = create(connected)
    middle = len(answer.id) // 2
    flipped = "A" if answer.id[middle] != "A" else "B"
    for wrong in (
        answer.id[:middle] + flipped + answer.id[middle + 1 :], answer.id[:-4], answer.id + "AAAA"
    ):  # fmt: skip
        body = {"model": "characters", "previous_response_id": wrong}
        reply = client.post("/v1/responses", json=body)
        refusal(reply, 422, "state_tampered", "previous_response_id")
    body = {"model": "other", "previous_response_id": answer.id}
    reply = client.post("/v1/responses", json=body)
    refusal(reply, 422, "state_wrong_model", "previous_response_id")


def test_only_its_own_tenant_continues_a_response_and_replicas_share_it(serve: Serve) -> None:
    keys = json.dumps([{"tenant": "acme", "key": ACME}, {"tenant": "other", "key": OTHER}])
    settings: dict[str, Any] = {"api_keys": keys, "state_keys": "a" * 64}
    body = {"input": PROMPT, "max_output_tokens": 20, "seed": 1}
    with serve("characters", **settings) as (one, _), serve("characters", **settings) as (two, _):
        assert one.post("/v1/responses", json=body).status_code == 401
        first = one.post("/v1/responses", json=body, headers=bearer(ACME)).json()
        later = {"previous_response_id": first["id"], "max_output_tokens": 20}
        texts = [
            client.post("/v1/responses", json=later, headers=bearer(ACME)).json()["output"]
            for client in (one, two)
        ]
        assert texts[0][0]["content"] == texts[1][0]["content"]
        reply = two.post("/v1/responses", json=later, headers=bearer(OTHER))
        refusal(reply, 403, "state_wrong_tenant", "previous_response_id")


def test_an_expired_id_is_gone(serve: Serve) -> None:
    clock = HandClock()
    with serve("characters", clock=clock, state_ttl_seconds=60) as (client, _):
        body = {"input": PROMPT, "max_output_tokens": 2}
        first = client.post("/v1/responses", json=body).json()["id"]
        later = {"previous_response_id": first, "max_output_tokens": 2}
        assert client.post("/v1/responses", json=later).is_success
        clock.now += 61
        refusal(
            client.post("/v1/responses", json=later), 410, "state_expired", "previous_response_id"
        )


def test_a_state_that_is_too_large_for_an_id_asks_for_store_false(serve: Serve) -> None:
    with serve("characters", max_state_token_bytes=200) as (client, _):
        body = {"input": PROMPT, "max_output_tokens": 2}
        message = refusal(client.post("/v1/responses", json=body), 422, "state_too_large", "store")
        assert '"store": false' in message
        assert client.post("/v1/responses", json=body | {"store": False}).is_success


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "web_search"}]), ("tool_choice", "required"),
        ("reasoning", {"effort": "low"}), ("background", True), ("conversation", "conv_1"),
        ("include", ["message.output_text.logprobs"]), ("top_logprobs", 2),
        ("prompt", {"id": "pmpt_1"}), ("context_management", [{"type": "compaction"}]),
        ("moderation", {"model": "m"}), ("text", {"verbosity": "low"}), ("n", 2), ("stop", "a"),
        ("previous_response_id", "chatcmpl-1"), ("max_output_tokens", -1), ("top_p", 0),
        ("truncation", "middle"), ("store", "yes"), ("metadata", {str(i): "" for i in range(17)}),
        ("metadata", {"a": 1}), ("instructions", ["a"]), ("input", 5), ("input", [5]),
        ("input", [{"role": "tool", "content": "a"}]), ("input", [{"role": "user"}]),
        ("input", [{"type": "function_call_output", "call_id": "1", "output": "2"}]),
        ("input", [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]),
        ("input", [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]),
        ("input", [{"role": "user", "content": "a", "name": "x"}]), ("input", ""), ("input", []),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_honoured_is_refused_by_name(
    client: httpx.Client, field: str, value: Any
) -> None:
    body = {"model": "characters", "input": PROMPT} | {field: value}
    reply = client.post("/v1/responses", json=body)
    code = "empty_input" if value in ("", []) else "invalid_request"
    message = refusal(reply, 422, code, field)
    assert f"'{field}" in message
    assert "prompt" not in message or field == "prompt"


def test_fields_that_ask_for_nothing_or_change_no_text_are_accepted(
    connected: openai.OpenAI,
) -> None:
    answer = create(
        connected, tools=[], tool_choice="auto", background=False, include=[], top_logprobs=0,
        reasoning={"effort": None}, user="me", safety_identifier="s", prompt_cache_key="k",
        service_tier="auto", truncation="auto", parallel_tool_calls=True, max_tool_calls=3,
        text={"format": {"type": "text"}}, stream_options={"include_obfuscation": False},
    )  # fmt: skip
    assert answer.output_text == create(connected).output_text
    assert answer.truncation == "auto"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"model": "question"}, "wrong_task", "model"),
        ({"model": "ids"}, "invalid_request", "model"),
        ({"max_output_tokens": 10**8}, "invalid_request", "max_output_tokens"),
    ],
)
def test_a_model_or_a_length_that_does_not_fit_is_refused(
    client: httpx.Client, body: dict[str, Any], code: str, param: str
) -> None:
    reply = client.post("/v1/responses", json={"model": "characters", "input": PROMPT} | body)
    message = refusal(reply, 422, code, param)
    assert "'max_tokens'" not in message


def test_a_client_that_leaves_ends_its_response(serve: Serve) -> None:
    with serve("characters") as (client, application):
        limits = application.limits
        left = metric(client, 'sru_client_disconnects_total{model="characters"}')
        body = {"input": PROMPT, "max_output_tokens": 60_000, "stream": True}
        with client.stream("POST", "/v1/responses", json=body) as reply:
            lines = reply.iter_lines()
            while "output_text.delta" not in next(lines):
                pass
            assert limits.replies.used >= 60_000  # the last events repeat the text
            assert metric(client, 'sru_running{model="characters"}') == 1
        until(lambda: metric(client, 'sru_running{model="characters"}') == 0)
        gone = 'sru_client_disconnects_total{model="characters"}'
        until(lambda: metric(client, gone) == left + 1)
        until(lambda: limits.replies.used == 0)


def test_an_error_in_the_middle_of_a_stream_ends_it_with_events(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("the network fails")

    with serve("characters") as (client, application), connect(client) as connected:
        served = application.lifecycle.catalogue.with_states("characters")
        stream = connected.responses.create(
            model="characters", input=PROMPT, max_output_tokens=50_000, stream=True
        )
        next(event for event in stream if event.type == "response.output_text.delta")
        with monkeypatch.context() as patch:
            patch.setattr(served.model.network, "logits", broken)
            *_, error, failed = list[Any](stream)
        assert (error.type, error.code) == ("error", "engine_failure")
        assert failed.type == "response.failed"
        assert failed.response.status == "failed"
        assert failed.response.error is not None
        assert failed.response.error.code == "engine_failure"
        assert "network fails" not in failed.response.error.message
        assert create(connected).output_text


def test_an_error_after_pings_alone_has_the_events_of_a_response(
    serve: Serve, steps: Steps
) -> None:
    body = {"model": "characters", "input": PROMPT, "max_output_tokens": 5}
    with (
        serve("characters", sse_ping_seconds=0.05) as (client, application),
        ThreadPoolExecutor(1) as pool,
    ):
        steps.hold(application)
        first = pool.submit(client.post, "/v1/responses", json=body)
        until(lambda: steps.waiting == 1)
        late = body | {"stream": True, "timeout_ms": 1}
        with client.stream("POST", "/v1/responses", json=late) as reply:
            lines = reply.iter_lines()
            assert next(lines) == ": ping"
            steps.go_on()
            names = [line for line in lines if line.startswith("event: ")]
        assert first.result().is_success
    assert (names[0], names[-2:]) == (
        "event: response.created", ["event: error", "event: response.failed"]
    )  # fmt: skip


def test_a_drain_ends_a_text_whose_id_continues_on_another_server(
    serve: Serve, folders: Path, tmp_path: Path
) -> None:
    settings = {"drain_seconds": "0", "state_keys": "a" * 64}
    program, _ = slow_server(tmp_path)
    with (
        serve("characters", state_keys="a" * 64) as (two, _),
        serving(folders / "characters", program=program, **settings) as (one, process),
        connect(one) as connected,
        connect(two) as other,
    ):
        options: Any = with_defaults(max_output_tokens=60_000)
        stream = connected.responses.create(stream=True, **options)
        next(event for event in stream if event.type == "response.output_text.delta")
        process.send_signal(signal.SIGTERM)
        *_, last = list[Any](stream)
        ended(process)
        assert last.type == "response.completed"
        assert last.response.incomplete_details.reason == "draining"
        tokens = last.response.usage.output_tokens
        rest = continued(other, last.response)
        whole = completion(other, tokens=tokens + 20)
        assert last.response.output_text + rest.output_text == whole


def test_responses_count_for_the_rate_of_their_key(serve: Serve) -> None:
    keys = json.dumps([{"key": ACME, "steps_per_second": 33}])
    body = {"input": PROMPT, "max_output_tokens": 20}  # 33 steps
    with serve("characters", api_keys=keys, clock=HandClock()) as (client, _):
        assert client.post("/v1/responses", json=body, headers=bearer(ACME)).is_success
        reply = client.post("/v1/responses", json=body, headers=bearer(ACME))
        refusal(reply, 429, "rate_limited")


def test_a_text_that_is_too_long_to_keep_is_refused_at_once(serve: Serve) -> None:
    with serve("characters", max_body_bytes=8000) as (client, _):
        body = {"input": "a", "max_output_tokens": 1001, "stream": True}
        message = refusal(client.post("/v1/responses", json=body), 422, "input_too_long")
        assert "`max_output_tokens`" in message
