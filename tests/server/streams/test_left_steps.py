"""Steps go on without their clients, and count as long as they wait for a thread."""

from contextlib import ExitStack, suppress
from contextvars import copy_context
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton

from sruserve.server.app import Application
from sruserve.server.errors import Overloaded
from sruserve.server.offload import THREADS, owner
from sruserve.server.tasks.limits import FREE_BYTES, STEP_BYTES, InputLimits
from tests.server.conftest import Leftovers, Serve
from tests.server.http.json_requests import connect
from tests.server.kserve.conftest import grpc_address
from tests.server.observing import until
from tests.server.tasks.gated_reading import GatedReading

TEXT = "a" * 5000  # less than a connection may have for nothing
STEPS = THREADS + 4


def count(application: Application, steps: int) -> None:
    """Wait until so many steps count."""
    until(lambda: application.limits.steps.used >= steps * (len(TEXT) + STEP_BYTES))


def read_on_threads(application: Application) -> None:
    """Read all texts on threads, as for a tokenizer whose time has no known bound."""
    application.lifecycle.catalogue.with_states("characters").long_characters = 0


def leave_steps(client: httpx.Client, application: Application) -> None:
    """Steps of as many streams, each left when it has begun."""
    path = "/v1/streams"
    first = client.post(path, json={}).json()["id"]
    forks = client.post(f"{path}/{first}/fork", json={"n": STEPS}).json()["data"]
    for number, stream in enumerate(forks, 1):
        with connect(client, f"{path}/{stream['id']}/steps", {"step": 1, "input": TEXT}):
            count(application, number)


def leave_sequences(client: httpx.Client, application: Application) -> None:
    """The same with sequences over HTTP."""
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [TEXT]}
    path = "/v2/models/characters/infer"
    for number in range(1, STEPS + 1):
        parameters = {"sequence_id": number, "sequence_start": True, "sequence_end": True}
        with connect(client, path, {"inputs": [tensor], "parameters": parameters}):
            count(application, number)


def leave_calls(_: httpx.Client, application: Application) -> None:
    """The same over gRPC."""
    text = triton.InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[TEXT.encode()]], dtype=np.object_))
    with triton.InferenceServerClient(grpc_address(application)) as client:
        for number in range(1, STEPS + 1):
            call = client.async_infer(
                "characters", [text], lambda *_: None,
                sequence_id=number, sequence_start=True, sequence_end=True,
            )  # fmt: skip
            count(application, number)
            call.cancel()


@pytest.mark.parametrize("leave", [leave_steps, leave_sequences, leave_calls])
def test_steps_whose_clients_have_left_count_until_their_jobs_are_queued(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, leave: Any
) -> None:
    with serve("characters", grpc_port=0) as (client, application), ExitStack() as stack:
        read_on_threads(application)
        gate = GatedReading(monkeypatch)
        stack.callback(gate.go_on.set)
        budget = application.limits.steps
        leave(client, application)
        until(lambda: application.lifecycle.active == 0)
        assert budget.used >= STEPS * (len(TEXT) + STEP_BYTES)
        stream = client.post("/v1/streams", json={}).json()["id"]
        with budget.hold(budget.limit - budget.used - STEP_BYTES):
            refused = client.post(f"/v1/streams/{stream}/steps", json={"step": 1, "input": "a"})
            assert refused.status_code == 429
        gate.go_on.set()
        until(lambda: budget.used == 0)
        again = client.post(f"/v1/streams/{stream}/steps", json={"step": 1, "input": "a"})
        assert again.status_code == 200


@pytest.mark.parametrize("leave", [leave_steps, leave_sequences, leave_calls])
def test_steps_that_fail_when_their_clients_have_left_leave_no_garbage(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, leave: Any, leftovers: Leftovers
) -> None:
    monkeypatch.setitem(globals(), "TEXT", TEXT[:-1] + "\t")  # which the vocabulary has not
    with serve("characters", grpc_port=0) as (client, application), ExitStack() as stack:
        read_on_threads(application)
        gate = GatedReading(monkeypatch)
        stack.callback(gate.go_on.set)
        leave(client, application)
        until(lambda: application.lifecycle.active == 0)
        gate.go_on.set()
        until(lambda: application.limits.steps.used == 0)
        until(lambda: not application.streams._tasks.running)
        assert not leftovers()


def test_a_short_step_has_room_while_long_bodies_take_all_of_theirs(serve: Serve) -> None:
    with serve("characters") as (client, application):
        stream, reading = (
            client.post("/v1/streams", json={}).json()["id"],
            application.limits.reading,
        )
        step = {"step": 1, "input": "a"}
        with reading.hold(reading.limit):
            for _ in range(2):  # once more: for its stored reply
                assert client.post(f"/v1/streams/{stream}/steps", json=step).status_code == 200
            long = {"step": 2, "input": "a" * FREE_BYTES}
            assert client.post(f"/v1/streams/{stream}/steps", json=long).status_code == 429


def test_the_steps_of_some_tenants_leave_room_for_those_of_others() -> None:
    limits = InputLimits(1, 1, 1, 1, 1, 1, queue_bytes=64 << 20, queue_seconds=0.0)

    def fill(name: str) -> None:
        owner.set(name)
        with suppress(Overloaded):
            while True:
                limits.count_step(FREE_BYTES)

    for name in "abcd":
        copy_context().run(fill, name)
    assert limits.steps.used <= limits.steps.limit
    another = copy_context()
    another.run(owner.set, "e")
    another.run(limits.count_step, FREE_BYTES)
