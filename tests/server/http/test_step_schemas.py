"""The document shows the fields of a step, and none that a step refuses."""

import httpx
import pytest


@pytest.mark.parametrize("name", ["Classify", "Tag", "Encode", "Score", "Complete"])
def test_a_step_shows_no_field_that_its_stream_sets(client: httpx.Client, name: str) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    fields = set(schemas[f"{name}Step"]["properties"])
    assert "step" in fields
    assert not fields & {"model", "state", "preset", "return_state"}


def test_a_step_that_asks_for_a_state_learns_where_it_is(client: httpx.Client) -> None:
    stream = client.post("/v1/streams", json={"model": "question"}).json()["id"]
    body = {"step": 1, "input": "a", "return_state": True}
    reply = client.post(f"/v1/streams/{stream}/steps", json=body)
    assert reply.status_code == 422
    assert "/v1/streams/{id}/state" in reply.json()["error"]["message"]
