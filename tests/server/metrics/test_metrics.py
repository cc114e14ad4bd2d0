"""Metrics: each event moves its own numbers by as much as happened, and no others."""

import asyncio
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from sruserve.server import lifecycle
from sruserve.server.app import Application
from sruserve.server.auth import Tenants
from sruserve.server.http.call import HttpCall
from sruserve.server.http.v1 import TaskEndpoint
from sruserve.server.metrics.metrics import gpu_memory
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.constraint_cache import ConstraintCache
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.requests import ClassifyRequest
from sruserve.server.tasks.task import Resources, Task
from tests.server.conftest import Serve
from tests.server.observing import metric, until
from tests.support import save_random_model

Read = Callable[..., float]
PROMISED = (
    *("sru_requests_total", "sru_request_seconds", "sru_queue_seconds", "sru_batch_size"),
    *("sru_first_character_seconds", "sru_step_tokens", "sru_step_seconds", "sru_running"),
    *("sru_generated_characters_total", "sru_generated_tokens_total", "sru_input_tokens_total"),
    *("sru_streams", "sru_state_bytes", "sru_queue_requests", "sru_state_mint_seconds"),
    *("sru_state_open_seconds", "sru_state_rejected_total", "sru_refusals_total"),
    *("sru_client_disconnects_total", "sru_replays_total", "sru_sockets", "sru_build_info"),
    "sru_connections",
    *("sru_held_streams", "sru_stream_steps_total", "sru_stream_idle_seconds"),
    "sru_streams_expired_total",
    *("sru_character_gap_seconds", "sru_state_limit_bytes", "sru_queue_limit_requests"),
    *("sru_queue_fill_ratio", "sru_state_fill_ratio"),
    *("sru_connections_limit", "sru_gpu_memory_bytes", "sru_worker_restarts_total"),
    *("sru_start_time_seconds", "sru_worker_cpu_seconds_total", "sru_worker_memory_bytes"),
    "sru_worker_open_files",
)


@pytest.fixture
def read(client: httpx.Client, application: Application) -> Read:
    """`read(name, **labels)`: how much a sample has grown since the test began."""

    def exported() -> str:
        until(lambda: application.lifecycle.active == 0)  # a reply is there before it is counted
        return client.get("/metrics").text

    begin = exported()

    def value(text: str, name: str, labels: dict[str, str]) -> float:
        lines = "\n".join(line for line in text.splitlines() if line.startswith(name))
        for family in text_string_to_metric_families(lines + "\n"):
            for sample in family.samples:
                if (sample.name, sample.labels) == (name, labels):
                    return sample.value
        return 0.0

    def grown(name: str, **labels: str) -> float:
        return value(exported(), name, labels) - value(begin, name, labels)

    return grown


def classify(client: httpx.Client, **body: Any) -> httpx.Response:
    return client.post("/v1/classify", json={"model": "question"} | body)


def test_a_good_request_is_counted_once(client: httpx.Client, read: Read) -> None:
    classify(client, input="How far is it")
    labels = {"model": "question", "route": "/v1/classify"}
    assert read("sru_requests_total", outcome="ok", **labels) == 1
    assert read("sru_requests_total", outcome="invalid", **labels) == 0
    assert read("sru_request_seconds_count", **labels) == 1
    assert 0 < read("sru_request_seconds_sum", **labels) < 60
    assert read("sru_queue_seconds_count", model="question") == 1
    assert read("sru_input_tokens_total", model="question") == 4
    assert read("sru_step_tokens_sum", model="question") == 4
    assert read("sru_batch_size_sum", model="question") == 1
    assert read("sru_step_seconds_count", model="question") == 1


def test_a_refused_request_is_counted_by_its_code(client: httpx.Client, read: Read) -> None:
    classify(client, input="")
    assert read("sru_refusals_total", model="question", reason="empty_input") == 1
    labels = {"model": "question", "route": "/v1/classify"}
    assert read("sru_requests_total", outcome="invalid", **labels) == 1
    assert read("sru_requests_total", outcome="ok", **labels) == 0


def test_what_names_no_model_is_counted_without_letting_clients_choose_labels(
    client: httpx.Client, read: Read
) -> None:
    classify(client, model="a model with a long name", input="a")
    client.post("/v1/classify", content=b"{")
    labels = {"model": "unknown", "route": "/v1/classify"}
    assert read("sru_requests_total", outcome="invalid", **labels) == 2
    assert read("sru_refusals_total", model="unknown", reason="model_not_found") == 1
    assert read("sru_refusals_total", model="unknown", reason="malformed_body") == 1
    assert "long name" not in client.get("/metrics").text


def test_lists_of_models_and_unknown_paths_are_in_no_metric(client: httpx.Client) -> None:
    def counted() -> list[str]:
        """What this and other tests of the process have counted of them."""
        words = ("route_not_found", "model_not_found", 'route="/v1/models')
        lines = client.get("/metrics").text.splitlines()
        return [line for line in lines if any(word in line for word in words)]

    before = counted()
    for path in ("/v1/models", "/v1/models/none", "/nonsense"):
        client.get(path)
    assert counted() == before


def test_states_are_counted_when_sealed_opened_and_refused(
    client: httpx.Client, read: Read
) -> None:
    state = classify(client, input="How ", more=True).json()["results"][0]["state"]
    classify(client, input=["far", "is"], state=state)
    classify(client, input="far", state=state[:-4])
    assert read("sru_state_mint_seconds_count", model="question") == 1
    assert read("sru_state_open_seconds_count", model="question") == 1
    assert read("sru_state_rejected_total", model="question", reason="state_tampered") == 1
    assert read("sru_refusals_total", model="question", reason="state_tampered") == 1


@pytest.mark.parametrize("stream", [True, False])
def test_generated_text_is_counted(client: httpx.Client, read: Read, stream: bool) -> None:
    body = {"model": "ids", "prompt": [1, 2], "max_tokens": 30, "n": 2, "stream": stream}
    client.post("/v1/completions", json=body)
    assert read("sru_generated_tokens_total", model="ids") == 60
    assert read("sru_input_tokens_total", model="ids") == 4
    assert read("sru_first_character_seconds_count", model="ids") == (1 if stream else 0)
    body = {"model": "characters", "prompt": "a", "max_tokens": 30, "stream": stream}
    client.post("/v1/completions", json=body)
    assert 8 <= read("sru_generated_characters_total", model="characters") <= 30


def test_the_gap_before_each_further_piece_of_a_streamed_text_is_counted(
    client: httpx.Client, read: Read
) -> None:
    body = {"model": "ids", "prompt": [1], "max_tokens": 2000, "n": 2, "stream": True}
    lines = client.post("/v1/completions", json=body).text.splitlines()
    chunks = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    pieces = Counter(chunk["index"] for chunk in chunks if chunk.get("token_ids"))
    assert min(pieces.values()) > 1, "one piece of each text has no gap"
    gaps = sum(pieces.values()) - len(pieces)
    assert read("sru_character_gap_seconds_count", model="ids") == gaps
    assert 0 < read("sru_character_gap_seconds_sum", model="ids") < 60 * len(pieces)
    client.post("/v1/completions", json=body | {"stream": False})
    assert read("sru_character_gap_seconds_count", model="ids") == gaps


def test_the_limits_of_the_queue_of_states_and_of_connections_are_exported(serve: Serve) -> None:
    limits = {"max_queue_requests": 77, "state_host_bytes": 5 << 20, "max_connections": 99}
    with serve("question", **limits) as (client, application):
        served = application.lifecycle.catalogue.with_states("question")
        row_bytes = served.engine._states.pool.row_bytes
        in_pool = (1 << 20) // row_bytes * row_bytes
        assert metric(client, 'sru_queue_limit_requests{model="question"}') >= 77
        assert metric(client, 'sru_state_limit_bytes{model="question",tier="host"}') >= 5 << 20
        assert metric(client, 'sru_state_limit_bytes{model="question",tier="pool"}') >= in_pool
        assert metric(client, "sru_connections_limit") == 99
        before = metric(client, 'sru_queue_limit_requests{model="question"}')
    with serve("sensor") as (client, _):
        after = metric(client, 'sru_queue_limit_requests{model="question"}')
        assert after == before - 77, "the limit of an engine that has ended"


def test_the_process_is_exported_with_its_cpu_time_memory_and_files(client: httpx.Client) -> None:
    own, worker = psutil.Process(), f'{{worker="{os.getpid()}"}}'
    before = sum(own.cpu_times()[:2])
    seconds = metric(client, f"sru_worker_cpu_seconds_total{worker}")
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert before - tick / 2 < seconds < sum(own.cpu_times()[:2]) + tick / 2  # sums are rounded
    assert metric(client, f"sru_worker_memory_bytes{worker}") > own.memory_info().rss / 2
    assert abs(metric(client, f"sru_worker_open_files{worker}") - own.num_fds()) < 20
    assert own.create_time() <= metric(client, "sru_start_time_seconds") <= time.time()


def test_the_memory_of_a_gpu_is_its_limit_the_reserved_part_and_that_in_use(
    client: httpx.Client, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [f'sru_gpu_memory_bytes{{kind="{kind}"}}' for kind in ("limit", "reserved", "used")]
    assert [metric(client, kind) for kind in kinds] == [0, 0, 0], "there is none on a CPU"
    lost = torch.device("cuda", 0)
    with monkeypatch.context() as patch:
        patch.setattr(application.lifecycle, "_device", lost)
        patch.setattr(lifecycle, "memory_use", lambda device: (30, 20, 10))
        application.lifecycle.report_memory()
        assert [metric(client, kind) for kind in kinds] == [30, 20, 10]
        patch.setattr(lifecycle, "memory_use", fail)
        application.lifecycle.report_memory()  # the pulse goes on
    gpu_memory()


def fail(device: torch.device) -> None:
    raise RuntimeError("CUDA error: the device is lost")


def test_a_token_without_text_is_no_first_character(client: httpx.Client, read: Read) -> None:
    with_text = 0
    for seed in range(40):  # some of these tokens are a character's first byte only
        body = {"model": "characters", "prompt": "a", "max_tokens": 1, "seed": seed}
        body |= {"return_state": True}
        with_text += client.post("/v1/completions", json=body).json()["choices"][0]["text"] != ""
        client.post("/v1/completions", json=body | {"stream": True})
    assert 0 < with_text < 40
    assert read("sru_first_character_seconds_count", model="characters") == with_text


def test_a_request_that_the_server_cancels_is_no_client_that_left(read: Read) -> None:
    class Stopped(Task[ClassifyRequest, ServedModel]):
        name, schema = "classify", ClassifyRequest

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def cancelled() -> None:
        limits = InputLimits(1, 1, 1, 1, 1, 1, 1, 0.0)
        stopped = Stopped(Resources(Catalogue(()), limits, ConstraintCache(1)))
        endpoint = TaskEndpoint("/v1/classify", stopped, Tenants())
        call = HttpCall({"headers": []}, asyncio.Event().wait, send)  # type: ignore[arg-type]
        task = asyncio.create_task(endpoint(call))
        await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(cancelled())
    assert sent[0]["status"] == 503
    labels = {"model": "unknown", "route": "/v1/classify"}
    assert read("sru_requests_total", outcome="refused", **labels) == 1
    assert read("sru_client_disconnects_total", model="unknown") == 0


def test_gauges_are_back_at_zero_when_nothing_runs(client: httpx.Client, serve: Serve) -> None:
    classify(client, input="a")
    idle = {
        'sru_streams{model="question",tier="pool"} 0.0',
        'sru_running{model="question"} 0.0',
        'sru_queue_requests{model="question"} 0.0',
    }
    until(lambda: idle <= set(client.get("/metrics").text.splitlines()))
    text = client.get("/metrics").text
    assert 'sru_build_info{kernel="' in text


def test_series_are_made_ahead_for_what_can_happen_alone(client: httpx.Client) -> None:
    text = client.get("/metrics").text
    made = set(re.findall(r'sru_request_seconds_count{model="(.*?)",route="(.*?)"}', text))
    assert {("question", "/v1/classify"), ("characters", "/v1/score")} <= made
    assert {("question", "/v1/stream"), ("unknown", "/v1/tag")} <= made
    never = {("question", "/v1/score"), ("characters", "/v1/classify"), ("whole", "/v1/stream")}
    assert not never & made
    assert 'sru_first_character_seconds_count{model="question"}' not in text
    assert "_created" not in text


def test_what_alerts_watch_for_is_exported_before_it_happens(serve: Serve, tmp_path: Path) -> None:
    """Of a model that no other test of this process has."""
    save_random_model(tmp_path / "watched", vocab_size=5)
    with serve(models=tmp_path, model_folders=()) as (client, _):
        samples = set(client.get("/metrics").text.splitlines())
    for code in ("out_of_memory", "engine_failure", "store_unavailable", "draining"):
        assert f'sru_refusals_total{{model="watched",reason="{code}"}} 0.0' in samples
    for code in ("state_unknown_key", "state_wrong_model"):
        assert f'sru_state_rejected_total{{model="watched",reason="{code}"}} 0.0' in samples


def test_every_promised_metric_is_exported_under_its_name(client: httpx.Client) -> None:
    text = client.get("/metrics").text
    for name in PROMISED:
        assert f"# TYPE {name} " in text, name
