"""A stream of frames is what one request is, whatever goes on beside it."""

import asyncio
from typing import Any

import httpx
import pytest
import websockets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sruserve.server.app import Application
from sruserve.server.budget import Hold
from sruserve.server.tasks.limits import InputLimits
from tests.server.conftest import TEXT
from tests.server.observing import until
from tests.server.websocket.talks import GENERATE, ask, completed, connected, over_http, run


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cuts=st.lists(st.integers(1, len(TEXT) - 1), max_size=5, unique=True))
def test_any_split_of_a_text_gives_what_the_whole_gives(
    client: httpx.Client, cuts: list[int]
) -> None:
    (whole,) = over_http(client, "/v1/classify", model="question", input=TEXT)["results"]

    async def talk() -> dict[str, Any]:
        async with connected(client) as connection:
            await ask(connection, model="question")
            at = 0
            for cut in sorted(cuts):
                await ask(connection, input=TEXT[at:cut])
                at = cut
            return await ask(connection, input=TEXT[at:], more=False)

    assert run(talk)["scores"] == whole["scores"]


def test_the_reply_with_a_state_counts_until_it_is_sent(
    client: httpx.Client, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, count_reply = list[int](), InputLimits.count_reply

    def see(limits: InputLimits, numbers: int) -> Hold:
        counted.append(numbers)
        return count_reply(limits, numbers)

    monkeypatch.setattr(InputLimits, "count_reply", see)
    word = "é" * 30_000
    model = application.lifecycle.catalogue.with_states("question").model

    async def talk() -> dict[str, Any]:
        async with connected(client) as connection:
            await ask(connection, model="question")
            await ask(connection, input=word)
            counted.clear()
            return await ask(connection, op="state")

    assert run(talk)["state"]
    assert counted == [model.network.layout.width + len(word)]
    until(lambda: application.limits.replies.used == 0)


def test_features_are_read_step_by_step(client: httpx.Client) -> None:
    steps = [[0.1 * i, *[0.5] * 7] for i in range(6)]
    (whole,) = over_http(client, "/v1/classify", model="sensor", features=steps)["results"]

    async def talk() -> dict[str, Any]:
        async with connected(client) as connection:
            reply = await ask(connection, model="sensor", features=steps[:1])
            for step in steps[1:]:
                reply = await ask(connection, features=[step])
            return reply

    assert run(talk)["scores"] == whole["scores"]


def test_tags_and_outputs_continue_from_frame_to_frame(tasks: httpx.Client) -> None:
    steps = [[0.2, 0.4], [0.6, 0.1], [0.3, 0.3]]
    (whole,) = over_http(tasks, "/v1/encode", model="small", features=steps)["results"]
    (tagged,) = over_http(tasks, "/v1/tag", model="letters", input="abcdef")["results"]

    async def talk() -> tuple[list[Any], list[Any]]:
        async with connected(tasks) as one, connected(tasks) as two:
            outputs = [await ask(one, model="small", features=steps[:2])]
            outputs.append(await ask(one, features=steps[2:]))
            tags = [await ask(two, model="letters", input="abc"), await ask(two, input="def")]
            return outputs, tags

    outputs, tags = run(talk)
    assert [row for reply in outputs for row in reply["outputs"]] == whole["outputs"]
    labels = [token["label"] for reply in tags for token in reply["tokens"]]
    assert labels == [token["label"] for token in tagged["tokens"]]


def test_a_state_sent_at_the_end_continues_over_http_and_in_another_socket(
    client: httpx.Client,
) -> None:
    body = GENERATE | {"max_tokens": 40}
    whole = over_http(client, "/v1/completions", **body)["choices"][0]["text"]

    async def talk() -> tuple[str, str, str]:
        async with connected(client) as connection:
            first, _ = await completed(connection, **GENERATE, max_tokens=15)
            state_before = (await ask(connection, op="state"))["state"]
            state = (await ask(connection, op="close"))["state"]
            with pytest.raises(websockets.ConnectionClosedOK):
                await connection.recv()
            assert connection.close_code == 1000
            assert state_before
            assert state
        async with connected(client) as connection:
            rest, last = await completed(
                connection, model="characters", state=state, max_tokens=25, return_state=True
            )
            again, _ = await completed(connection, max_tokens=5)
        assert last["usage"] == {**last["usage"], "completion_tokens": 25}
        end = over_http(
            client, "/v1/completions", model="characters", prompt="", max_tokens=5,
            state=last["choices"][0]["state"],
        )  # fmt: skip
        assert end["choices"][0]["text"] == again
        return first, rest, state

    first, rest, state = run(talk)
    assert first + rest == whole
    body = {"model": "characters", "prompt": "", "state": state, "max_tokens": 25}
    assert over_http(client, "/v1/completions", **body)["choices"][0]["text"] == rest


def test_a_language_model_scores_inputs_and_completes_prompts_in_one_stream(
    client: httpx.Client,
) -> None:
    whole = over_http(client, "/v1/score", model="characters", input="To be, or not")["results"][0]
    longer = GENERATE | {"prompt": "To be, or not", "max_tokens": 9}
    text = over_http(client, "/v1/completions", **longer)["choices"][0]["text"]

    async def talk() -> None:
        async with connected(client) as connection:
            first = await ask(connection, model="characters", input="To be, ")
            second = await ask(connection, input="or not")
            total = first["log_likelihood"] + second["log_likelihood"]
            assert total == pytest.approx(whole["log_likelihood"])
            assert (await completed(connection, max_tokens=9, seed=3))[0] == text

    run(talk)


def test_two_streams_do_not_see_each_others_state(client: httpx.Client) -> None:
    texts = [f"{word} is it from a to {word}" for word in ("who", "what", "where", "when")]
    alone = [
        over_http(client, "/v1/classify", model="question", input=text)["results"][0]["scores"]
        for text in texts
    ]

    async def talk(text: str) -> dict[str, Any]:
        async with connected(client) as connection:
            await ask(connection, model="question")
            for letter in text:
                await ask(connection, input=letter)
            last = await ask(connection, input="", more=False)
            return dict(last["scores"])

    async def together() -> list[dict[str, Any]]:
        return await asyncio.gather(*map(talk, texts))

    assert run(together) == alone
