"""Where several models do a task, a default one answers requests that name none."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sruserve.server.lifecycle import Lifecycle
from sruserve.server.settings import SettingsError, load_settings
from tests.server.conftest import Serve
from tests.server.posting import CLASSIFY, COMPLETE, refusal
from tests.server.websocket.sockets import SECONDS, open_socket

SCORE, PREDICT, STREAMS = "/v1/score", "/predict", "/v1/streams"
MODELS = ("question", "whole", "characters", "other")
SETTING = "SRUSERVE_DEFAULT_MODELS"


@pytest.fixture(scope="module")
def client(serve: Serve) -> Iterator[httpx.Client]:
    """A server of two models for each of two tasks, with a default of each and one it lacks."""
    with serve(*MODELS, default_models="absent, question,other") as (client, _):
        yield client


def replied(client: httpx.Client, path: str, **body: object) -> dict[str, Any]:
    reply = client.post(path, json=body)
    assert reply.is_success, reply.text
    fields: dict[str, Any] = reply.json()
    return fields


@pytest.mark.parametrize(
    ("path", "body", "default"),
    [
        (CLASSIFY, {"input": "who"}, "question"),
        ("/v1/embeddings", {"input": "who"}, "question"),
        (COMPLETE, {"prompt": "who", "max_tokens": 1}, "other"),
        (SCORE, {"input": "who"}, "other"),
        ("/v1/responses", {"input": "who", "max_output_tokens": 1}, "other"),
    ],
    ids=lambda value: value.rpartition("/")[2] if isinstance(value, str) else "",
)
def test_a_request_without_a_model_gets_the_default_of_its_task(
    client: httpx.Client, path: str, body: dict[str, object], default: str
) -> None:
    assert replied(client, path, **body)["model"] == default


def test_a_model_that_is_named_is_no_other(client: httpx.Client) -> None:
    for name in ("question", "whole"):
        assert replied(client, CLASSIFY, model=name, input="who")["model"] == name


def test_predict_has_no_field_for_the_model_and_gets_the_default(client: httpx.Client) -> None:
    replies = [client.post(path, json={"inputs": "who"}).json() for path in (
        PREDICT, f"{PREDICT}?model=question", f"{PREDICT}?model=whole")]  # fmt: skip
    assert replies[0] == replies[1] != replies[2]


def test_sockets_and_streams_get_the_default_if_one_of_their_models_is_one(serve: Serve) -> None:
    with serve("question", "whole", default_models="question") as (client, _):
        with open_socket(client) as socket:
            socket.send("{}")
            assert json.loads(socket.recv(SECONDS))["model"] == "question"
        assert replied(client, STREAMS)["model"] == "question"


def test_defaults_of_two_tasks_do_not_decide_for_a_socket_or_a_stream(client: httpx.Client) -> None:
    with open_socket(client) as socket:
        socket.send(json.dumps({"input": "who"}))
        message = json.loads(socket.recv(SECONDS))["error"]["message"]
    for refused in (
        message,
        refusal(client.post(STREAMS, json={}), 422, "invalid_request", "model"),
    ):
        assert f"choose among {', '.join(MODELS)}" in str(refused)
        assert f"{SETTING} names several of them: question, other" in str(refused)


def test_a_state_belongs_to_its_own_model(client: httpx.Client) -> None:
    def completed(**body: object) -> dict[str, Any]:
        fields = replied(client, COMPLETE, max_tokens=4, seed=1, return_state=True, **body)
        assert fields["model"] == "characters"
        choice: dict[str, Any] = fields["choices"][0]
        return choice

    first = completed(model="characters", prompt="who")
    unnamed = completed(prompt="", state=first["state"])
    named = completed(model="characters", prompt="", state=first["state"])
    assert unnamed["text"] == named["text"]


def test_a_state_of_another_task_is_refused_by_the_default_model(client: httpx.Client) -> None:
    state = replied(client, CLASSIFY, input="who", more=True)["results"][0]["state"]
    reply = client.post(COMPLETE, json={"prompt": "", "state": state})
    refusal(reply, 422, "state_wrong_model", "state")
    refusal(client.post(CLASSIFY, json={"input": "", "state": "x"}), 422, "state_tampered", "state")


def test_without_a_default_the_request_is_refused_and_learns_the_setting(serve: Serve) -> None:
    with serve(*MODELS, default_models="absent") as (client, _):
        refused = refusal(
            client.post(CLASSIFY, json={"input": "who"}), 422, "invalid_request", "model"
        )
    assert f"choose among question, whole ({SETTING} names none of them)" in str(refused)


def test_two_defaults_of_a_task_are_refused_at_the_start(folders: Path) -> None:
    async def start(names: str) -> None:
        served = tuple(folders / name for name in MODELS)
        settings = load_settings(model_folders=served, default_models=names)
        lifecycle = Lifecycle(settings)
        try:
            await lifecycle.start()
        finally:
            await lifecycle.stop()

    refused = (
        f"{SETTING} names question and whole, which are both for 'classify': name at most one "
        "model for each task"
    )
    with pytest.raises(SettingsError, match=re.escape(refused)):
        asyncio.run(start("characters,question,whole"))


def test_a_default_is_a_name_without_a_version() -> None:
    with pytest.raises(SettingsError, match=f"{SETTING}=a,b@2: .*leave out @2"):
        load_settings(default_models="a,b@2")
