"""API keys and their limits hold in sockets."""

import json

import pytest
import websockets

from tests.server.conftest import Serve
from tests.server.observing import until
from tests.server.websocket.talks import ask, connected, run


def test_with_api_keys_the_handshake_needs_one(serve: Serve) -> None:
    with serve("question", api_keys="one:first-key,two:second-key") as (client, _):

        async def talk() -> None:
            for headers in ({}, {"authorization": "Bearer wrong-key"}):
                with pytest.raises(websockets.InvalidStatus) as refused:
                    async with connected(client, additional_headers=headers):
                        pass
                assert refused.value.response.status_code == 401
                body = json.loads(refused.value.response.body or b"{}")
                assert body["error"]["code"] == "invalid_api_key"
            first = {"authorization": "Bearer first-key"}
            async with connected(client, additional_headers=first) as connection:
                await ask(connection, model="question", input="a b")
                state = (await ask(connection, op="state"))["state"]
            second = {"authorization": "Bearer second-key"}
            async with connected(client, additional_headers=second) as connection:
                error = (await ask(connection, model="question", state=state))["error"]
                assert error["code"] == "state_wrong_tenant"

        run(talk)


def test_the_limits_of_an_api_key_hold_in_sockets(serve: Serve) -> None:
    entry = {"key": "a-long-key", "tenant": "a", "state_bytes": 5000, "requests_per_second": 20}
    headers = {"authorization": "Bearer a-long-key"}
    with serve("question", api_keys=json.dumps([entry])) as (client, _):

        async def talk() -> None:
            async with connected(client, additional_headers=headers) as one:
                assert (await ask(one, model="question"))["task"] == "classify"
                async with connected(client, additional_headers=headers) as two:
                    error = (await ask(two, model="question"))["error"]
                    assert error["code"] == "state_quota_exceeded"
            async with connected(client, additional_headers=headers) as three:
                while "error" in (reply := await ask(three, model="question")):
                    assert reply["error"]["code"] == "state_quota_exceeded"  # one is leaving
                codes = [await ask(three, input="a") for _ in range(30)]
                limited = [reply for reply in codes if "error" in reply]
                assert limited[0]["error"]["code"] == "rate_limited"
                assert limited[0]["retry_after"] == 1

        run(talk)


def test_the_unfinished_word_of_a_socket_counts_in_its_tenants_quota(serve: Serve) -> None:
    entry = {"key": "a-long-key", "tenant": "a", "state_bytes": 9000}
    headers = {"authorization": "Bearer a-long-key"}
    with serve("question", api_keys=json.dumps([entry])) as (client, application):

        async def talk() -> None:
            async with connected(client, additional_headers=headers) as socket:
                assert "usage" in await ask(socket, input="How far is ")
                error = (await ask(socket, input="x" * 3000))["error"]
                assert error["code"] == "state_quota_exceeded"
                assert "usage" in await ask(socket, input="it ")  # behind the frame before

        run(talk)
        tenant = application.lifecycle.tenants.authenticate(headers["authorization"])
        until(lambda: tenant.state_budget.used == 0)
