"""`POST /v1/state` shows the owner of a token what it contains, and nobody else."""

import json
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from sruserve.server.app import Application
from sruserve.server.http.state_view import StateReply
from sruserve.server.offload import POOL
from sruserve.server.state.view import MAX_VALUES
from tests.server.conftest import Serve
from tests.server.hand_clock import HandClock
from tests.server.keys import ACME, OTHER, bearer

KEYS = "a" * 64


def state_of(client: httpx.Client, prompt: str = "abc", **headers: str) -> str:
    body = {"model": "characters", "prompt": prompt, "max_tokens": 4, "return_state": True}
    reply = client.post("/v1/completions", json={**body, "seed": 7}, headers=headers)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["state"])


def view(client: httpx.Client, state: str, **fields: Any) -> httpx.Response:
    return client.post("/v1/state", json={"state": state, **fields})


def refused(reply: httpx.Response, status: int, code: str) -> str:
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (status, code), reply.text
    return str(error["message"])


def test_the_numbers_are_those_of_the_state(client: httpx.Client, application: Application) -> None:
    state = state_of(client)
    shown = view(client, state, values=MAX_VALUES).json()
    assert StateReply.model_validate(shown, strict=True).model_dump() == shown  # no other fields
    served = application.lifecycle.catalogue.with_states("characters")
    snapshot, layout = served.open_state(state), served.model.network.layout
    assert (shown["model"], shown["version"]) == ("characters", "1")
    assert (shown["steps"], shown["state_bytes"]) == (snapshot.steps, layout.nbytes)
    assert [entry["name"] for entry in shown["entries"]] == [each.name for each in layout.entries]
    row = np.asarray(snapshot.row).tolist()
    assert [value for entry in shown["entries"] for value in entry["values"]] == row
    for entry in shown["entries"]:
        numbers = entry["values"]
        assert (entry["size"], entry["min"], entry["max"]) == (
            len(numbers),
            min(numbers),
            max(numbers),
        )
        assert entry["mean"] == pytest.approx(sum(numbers) / len(numbers))


@pytest.mark.parametrize("values", [0, 1, 5, 24, 1000])
def test_the_values_of_a_tensor_are_evenly_spaced_and_bounded(
    client: httpx.Client, values: int
) -> None:
    state = state_of(client)
    whole = view(client, state, values=MAX_VALUES).json()["entries"]
    some = view(client, state, values=values).json()["entries"]
    for all_of, entry in zip(whole, some, strict=True):
        count = min(values, entry["size"])
        places = [number * entry["size"] // count for number in range(count)]
        assert entry["values"] == [all_of["values"][place] for place in places]
        assert entry["mean"] == all_of["mean"]


def test_a_reply_has_no_text_and_no_seed(client: httpx.Client) -> None:
    body = {"model": "question", "input": "secretword", "more": True}
    state = client.post("/v1/classify", json=body).json()["results"][0]["state"]
    shown = view(client, state)
    assert shown.status_code == 200
    assert "secretword" not in shown.text
    assert set(shown.json()) == set(StateReply.model_fields)


def test_the_expiry_is_that_of_the_token(serve: Serve) -> None:
    clock = HandClock()
    with serve("characters", state_ttl_seconds=1000, clock=clock) as (client, _):
        state = state_of(client)
        assert view(client, state).json()["expires_at"] == int(clock.now) + 1000
        clock.now += 1000
        refused(view(client, state), 410, "state_expired")
    with serve("characters", state_ttl_seconds=0) as (client, _):
        assert view(client, state_of(client)).json()["expires_at"] is None


@pytest.mark.parametrize("place", [0, 40, 80, 87, 200, -1], ids=str)
def test_a_changed_token_is_refused(client: httpx.Client, place: int) -> None:
    state = list(state_of(client))
    state[place] = "A" if state[place] != "A" else "B"
    reply = view(client, "".join(state))
    assert reply.status_code in (403, 422), reply.text
    assert reply.json()["error"]["code"].startswith("state_")
    assert reply.json()["error"]["param"] == "state"


@pytest.mark.parametrize("token", ["", "é", "AAAA", "x" * 200])
def test_what_is_no_token_is_refused(client: httpx.Client, token: str) -> None:
    refused(view(client, token), 422, "state_tampered")


def test_a_state_of_weights_that_are_not_served_is_refused(
    client: httpx.Client, serve: Serve
) -> None:
    with serve("other", state_keys=KEYS) as (foreign, _):
        message = refused(view(foreign, state_of(client)), 422, "state_wrong_model")
        assert "served here: other" in message


def test_a_state_under_another_key_is_refused(client: httpx.Client, serve: Serve) -> None:
    with serve("characters", state_keys="b" * 64) as (foreign, _):
        refused(view(client, state_of(foreign)), 422, "state_unknown_key")


@pytest.mark.parametrize("values", [-1, MAX_VALUES + 1, "8", 1.5])
def test_a_number_of_values_without_a_bound_is_refused(client: httpx.Client, values: Any) -> None:
    refused(view(client, state_of(client), values=values), 422, "invalid_request")


@pytest.fixture(scope="module")
def guarded(serve: Serve) -> Iterator[httpx.Client]:
    keys = [
        {"tenant": "acme", "key": ACME},
        {"tenant": "other", "key": OTHER},
        {"tenant": "slow", "key": "slow-key-123", "requests_per_second": 0.001},
    ]
    with serve("characters", api_keys=json.dumps(keys), state_keys=KEYS) as (client, _):
        yield client


def test_a_token_opens_for_its_owner_alone(guarded: httpx.Client) -> None:
    state = state_of(guarded, **bearer(ACME))
    body = {"state": state}
    own = guarded.post("/v1/state", json=body, headers=bearer(ACME))
    assert (own.status_code, own.json()["model"]) == (200, "characters")
    other = guarded.post("/v1/state", json=body, headers=bearer(OTHER))
    refused(other, 403, "state_wrong_tenant")
    refused(guarded.post("/v1/state", json=body), 401, "invalid_api_key")


def test_the_rate_of_a_key_holds_for_this_route(guarded: httpx.Client) -> None:
    headers = bearer("slow-key-123")
    refused(guarded.post("/v1/state", json={"state": ""}, headers=headers), 422, "state_tampered")
    refused(guarded.post("/v1/state", json={"state": ""}, headers=headers), 429, "rate_limited")


def test_a_long_token_is_opened_beside_the_event_loop(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []
    put = POOL._put

    def count(do: Callable[[], Any], cost: int, owner: Hashable) -> Any:
        begun.append(do)
        return put(do, cost, owner)

    monkeypatch.setattr(POOL, "_put", count)
    state = state_of(client)
    assert view(client, state).status_code == 200
    assert not begun
    refused(view(client, state + state[-4:] * (20 << 10)), 422, "state_tampered")
    assert len(begun) == 2  # its JSON is checked, and then it is opened


def test_a_request_is_counted_under_its_model(client: httpx.Client) -> None:
    def counted(outcome: str, model: str) -> float:
        name = f'sru_requests_total{{model="{model}",outcome="{outcome}",route="/v1/state"}} '
        text = client.get("/metrics").text
        return float(
            next((line for line in text.splitlines() if line.startswith(name)), name + "0").split()[
                -1
            ]
        )

    before = counted("ok", "characters"), counted("invalid", "unknown")
    view(client, state_of(client))
    view(client, "no token")
    assert (counted("ok", "characters"), counted("invalid", "unknown")) == (
        before[0] + 1,
        before[1] + 1,
    )
