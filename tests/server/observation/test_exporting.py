"""Servers as processes, with collectors that hang or are missing, and logs that nobody reads."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from sruserve.server.observation.collector_session import CollectorSession
from sruserve.server.observation.observation import Description, Observation
from sruserve.server.observation.observer import RequestObserver
from sruserve.server.observation.otlp import Exports
from sruserve.server.observation.traceparent import TraceParent, read_traceparent
from sruserve.server.settings import SettingsError, load_settings
from tests.check.hostile import answering, repeats
from tests.server.observation.collector import Collector, collecting
from tests.server.observation.json_server import json_server
from tests.server.observing import until
from tests.server.slow_server import PATIENT_SERVER

BODY = {"model": "question", "input": "who"}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


def post(url: httpx.URL, times: int = 1) -> None:
    """Requests over a connection of their own, which may find any worker."""
    with httpx.Client(base_url=url, timeout=60, verify=False) as client:
        for _ in range(times):
            client.post("/v1/classify", json=BODY).raise_for_status()


def test_workers_export_for_themselves_and_neither_a_collector_nor_a_log_stops_them(
    folders: Path, tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "16")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    reading, writing = os.pipe()  # nobody reads it
    settings = {"workers": "2", "traces": "otlp", "access_log": "true"}
    with json_server(tmp_path, folders / "question", stdout=writing, **settings) as (
        client,
        running,
    ):
        os.close(writing)

        def workers() -> set[int]:
            post(client.base_url)
            return {resource["process.pid"] for _, resource in collector.spans}

        until(lambda: len(workers()) == 2)
        instances = {resource["service.instance.id"] for _, resource in collector.spans}
        assert len(instances) == 2
        collector.may_answer.clear()
        with ThreadPoolExecutor(8) as pool:  # 400 lines fill the pipe, 1,600 spans the queues
            list(pool.map(lambda _: post(client.base_url, 50), range(8)))
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0
        assert not any("by force" in line["message"] for line in running.lines)
    os.close(reading)


def test_spans_that_wait_at_a_stop_are_sent(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "600000")
    with collecting() as other:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", other.url)
        with json_server(tmp_path, folders / "question", program=PATIENT_SERVER, traces="otlp") as (
            client,
            running,
        ):
            post(client.base_url, 10)
            assert not other.spans
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(60) == 0
        assert len(other.named("POST /v1/classify")) == 10


def test_a_collector_whose_reply_never_ends_is_read_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endless = repeats(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536)
    with answering(endless) as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        exports = Exports()
        for consume in exports.consumers:
            consume(ended())
        exports.close(30)
        assert not any(each.name == "exporter's end" for each in threading.enumerate())


def test_a_reply_that_breaks_off_has_the_status_that_it_began_with() -> None:
    head = b"HTTP/1.1 503 Busy\r\ntransfer-encoding: chunked\r\n\r\n"
    with answering(lambda connection, _: connection.sendall(head + b"5\r\na")) as url:
        reply = CollectorSession().get(url, timeout=60)
    assert (reply.status_code, reply.content) == (503, b"")


@pytest.mark.parametrize(("sampler", "count"), [("always_off", 0), ("always_on", 4)])
def test_the_standard_variable_chooses_what_is_sampled(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, sampler: str, count: int
) -> None:
    collector.may_answer.set()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    exports, before = Exports(), len(collector.spans)
    for consume in exports.consumers:
        for _ in range(4):
            consume(ended())
    exports.close(60)
    assert len(collector.spans) == before + count


@pytest.mark.parametrize("sampler", ["parentbased_traceidratio", "traceidratio"])
def test_a_client_chooses_to_be_traced_whatever_the_ratio_as_the_docs_say(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    collector.may_answer.set()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.001")
    exports, before = Exports(), len(collector.spans)
    for consume in exports.consumers:
        consume(ended(read_traceparent(f"00-{1:032x}-{1:016x}-01")))
    exports.close(60)
    assert len(collector.spans) == before + 1


@pytest.mark.parametrize("signals", ["TRACES", "METRICS"])
def test_either_signal_can_be_left_out(monkeypatch: pytest.MonkeyPatch, signals: str) -> None:
    monkeypatch.setenv(f"OTEL_{signals}_EXPORTER", "none")
    exports = Exports()
    assert len(exports.consumers) == 1
    exports.close(0)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1000000"),
    ],
)
def test_a_variable_that_cannot_be_is_an_error(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match="OTEL_"):
        Exports()


def test_without_its_package_a_server_that_traces_does_not_start() -> None:
    program = (
        "import sys\n"
        "sys.modules['opentelemetry.sdk'] = None  # an import of it fails from here on\n"
        "from sruserve.cli import app\n"
        "app(['serve'])"
    )
    environment = os.environ | {"SRUSERVE_TRACES": "otlp"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 2
    assert "SRUSERVE_TRACES=otlp: needs the extra 'otel'" in done.stderr
    assert "pip install 'sruserve[otel]'" in done.stderr


def test_with_its_package_a_server_may_trace() -> None:
    assert load_settings(traces="otlp").traces == "otlp"


def ended(parent: TraceParent | None = None) -> Observation:
    """A request that has ended."""
    observation = Observation("/", 0.0, lambda _: None)
    description = Description("http", "1", "GET", 200, parent=parent)
    observation.end(description, "question", "ok", None)
    return observation


def test_requests_that_are_too_many_to_observe_are_dropped_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[Observation] = []
    observer = RequestObserver([seen.append], max_waiting=3)
    for _ in range(5):
        observer.begin("/", 0.0).end(Description("http", "1"), "question", "ok", None)
    observer.start()
    until(lambda: bool(caplog.messages))
    observer.close(60)
    assert len(seen) == 3
    assert caplog.messages == ["2 requests were neither logged nor traced: too many at once"]


def test_a_consumer_that_fails_is_reported_once_and_the_others_continue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[Observation] = []

    def fail(observation: Observation) -> None:
        raise ValueError

    observer = RequestObserver([fail, seen.append])
    observer.start()
    for _ in range(40):
        observer.begin("/", 0.0).end(Description("http", "1"), "question", "ok", None)
    observer.close(60)
    assert len(seen) == 40
    assert caplog.messages == ["a request could not be logged or traced"]
