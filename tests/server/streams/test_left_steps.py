"""Steps go on without their clients, and count as long as they wait for a thread."""

from contextlib import ExitStack
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton

from sruserve.server.api import served
from sruserve.server.api.limits import STEP_BYTES
from sruserve.server.app import Application
from sruserve.server.offload import THREADS
from tests.server.conftest import Serve
from tests.server.kserve.conftest import grpc_address
from tests.server.test_clients_that_leave import connect, until
from tests.server.test_limits import HeldReading

TEXT = "a" * 5000  # less than a connection may have for nothing
STEPS = THREADS + 4


def count(application: Application, steps: int) -> None:
    """Wait until so many steps count."""
    until(lambda: application.limits.reading.held >= steps * (len(TEXT) + STEP_BYTES))


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
    monkeypatch.setattr(served, "LONG_CHARACTERS", 100)
    with serve("characters", grpc_port=0) as (client, application), ExitStack() as stack:
        held = HeldReading(monkeypatch)
        stack.callback(held.go_on.set)
        reading = application.limits.reading
        leave(client, application)
        until(lambda: application.lifecycle.active == 0)
        assert reading.held >= STEPS * (len(TEXT) + STEP_BYTES)
        stream = client.post("/v1/streams", json={}).json()["id"]
        with reading.hold(reading.limit - reading.held - STEP_BYTES):
            refused = client.post(f"/v1/streams/{stream}/steps", json={"step": 1, "input": "a"})
            assert refused.status_code == 429
        held.go_on.set()
        until(lambda: reading.held == 0)
        again = client.post(f"/v1/streams/{stream}/steps", json={"step": 1, "input": "a"})
        assert again.status_code == 200
