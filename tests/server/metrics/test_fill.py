"""How full the fullest engine is, beside engines of other versions that are empty."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore
from typing import Any

import httpx
import pytest
from prometheus_client import Gauge

from sruserve.server.app import Application
from sruserve.server.engine.engine import Engine
from sruserve.server.metrics.fill import Fill
from tests.server.conftest import Serve
from tests.server.observing import metric, until
from tests.server.repository.changing_models import classify, save_version

Running = tuple[httpx.Client, Application]
QUEUE = 4


@pytest.fixture
def two(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A server of two versions, whose engines report after every step, from the first one on."""
    monkeypatch.setattr(Engine, "report_seconds", 0.0)
    for version in (1, 2):
        save_version(tmp_path / "filled", version)
    settings: dict[str, Any] = {"models": tmp_path, "model_folders": (), "state_host_bytes": 0}
    with serve(max_queue_requests=QUEUE, max_batch_tokens=8, **settings) as running:
        yield running


def engine_of(application: Application, version: str) -> Engine:
    catalogue = application.lifecycle.catalogue
    return catalogue.with_states(f"filled@{version}").engine


def of_model(client: httpx.Client, name: str, tier: str = "") -> float:
    return metric(client, f'{name}{{model="filled"{tier}}}')


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_version_that_refuses_requests_is_full_beside_an_idle_one(
    two: Running, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    client, application = two
    engine, step = engine_of(application, version), Semaphore(0)
    run = engine._runner.step

    def one_at_a_time(*args: Any) -> Any:
        assert step.acquire(timeout=60)
        return run(*args)

    monkeypatch.setattr(engine._runner, "step", one_at_a_time)
    # on the event loop, a step that waits would hold all requests
    monkeypatch.setattr(engine, "_answered_here", lambda job: False)
    body = {"model": f"filled@{version}", "input": "who what where " * 20}
    with ThreadPoolExecutor(QUEUE) as pool:
        replies = [pool.submit(client.post, "/v1/classify", json=body) for _ in range(QUEUE)]
        try:
            until(lambda: engine.waiting == QUEUE)
            step.release()
            until(lambda: of_model(client, "sru_queue_requests") == QUEUE)
            assert classify(client, f"filled@{version}").json()["error"]["code"] == "overloaded"
            assert of_model(client, "sru_queue_fill_ratio") == 1
            assert of_model(client, "sru_queue_limit_requests") == 2 * QUEUE
        finally:
            step.release(1000)
        assert [reply.result().status_code for reply in replies] == [200] * QUEUE
    until(lambda: of_model(client, "sru_queue_fill_ratio") == 0)


def test_the_states_of_one_version_are_compared_with_its_own_limit(two: Running) -> None:
    client, application = two
    engine = engine_of(application, "1")
    for _ in range(3):
        stream = client.post("/v1/streams", json={"model": "filled@1"}).json()["id"]
        first = {"step": 1, "input": "who what", "more": True}
        assert client.post(f"/v1/streams/{stream}/steps", json=first).status_code == 200
    pool = engine._states.pool
    until(lambda: engine.rows == 3)
    until(lambda: of_model(client, "sru_state_fill_ratio") == 3 / pool.capacity)
    limit = of_model(client, "sru_state_limit_bytes", ',tier="pool"')
    assert limit == 2 * pool.capacity * pool.row_bytes


def test_an_engine_that_has_ended_is_left_out() -> None:
    gauge = Gauge("fill", "", registry=None)
    full, half = Fill(gauge), Fill(gauge)
    for fill, used in ((full, 10), (half, 5)):
        fill.limit(10)
        fill.set(used)
    assert share(gauge) == 1
    full.ended()
    assert share(gauge) == 0.5
    half.ended()
    assert share(gauge) == 0


def share(gauge: Gauge) -> float:
    (family,) = gauge.collect()
    return float(family.samples[0].value)
