"""Traces and metrics, as a collector receives and decodes them."""

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from sruserve.server.tasks.endpoint import Endpoint
from tests.server.conftest import WORDS, Serve
from tests.server.kserve.conftest import grpc_address
from tests.server.observation.clients import GENERATING, ROUTES, stream
from tests.server.observation.collector import Collector, attributes, collecting
from tests.server.observing import until

Traced = tuple[httpx.Client, str, Collector]
REQUESTS = 50


@pytest.fixture(scope="module")
def traced(serve: Serve) -> Iterator[Traced]:
    """A server, its port for gRPC, and the collector of its traces."""
    with collecting() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        patch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        patch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
        settings = {"traces": "otlp", "grpc_port": 0}
        with serve("question", "characters", "other", **settings) as (client, application):
            yield client, grpc_address(application), collector
    assert Endpoint.observer is None


def new_parent(flags: str = "01") -> tuple[bytes, bytes, dict[str, str]]:
    """A trace, the span of a client in it, and the header that says so."""
    trace, span = secrets.token_bytes(16), secrets.token_bytes(8)
    return trace, span, {"traceparent": f"00-{trace.hex()}-{span.hex()}-{flags}"}


def spans_of(collector: Collector, trace: bytes) -> list[Span]:
    return [span for span, _ in collector.spans if span.trace_id == trace]


def until_complete(collector: Collector, trace: bytes) -> dict[str, Span]:
    """The four spans of one request in a trace, by name, once they have arrived."""
    until(lambda: len(spans_of(collector, trace)) >= 4)
    spans = {span.name: span for span in spans_of(collector, trace)}
    assert len(spans) == 4
    return spans


@pytest.mark.parametrize("name", ROUTES)
def test_a_request_is_a_span_of_its_client_s_trace_over_every_protocol(
    traced: Traced, name: str
) -> None:
    client, rpc, collector = traced
    ask, span_name = ROUTES[name]
    trace, parent, headers = new_parent()
    ask(client, rpc, "who what", headers)
    # a socket's opening is a request, too, of the same name
    until(lambda: len(spans_of(collector, trace)) >= (5 if name == "talk" else 4))
    spans = {span.name: span for span in spans_of(collector, trace) if _is_part_or_asks(span)}
    request = spans.pop(span_name)
    assert request.parent_span_id == parent
    assert request.kind == Span.SPAN_KIND_SERVER
    assert set(spans) == {"queue", "steps", "reply"}
    assert {span.parent_span_id for span in spans.values()} == {request.span_id}
    queue, steps, reply = spans["queue"], spans["steps"], spans["reply"]
    times = [request.start_time_unix_nano, queue.start_time_unix_nano, queue.end_time_unix_nano]
    times += [steps.start_time_unix_nano, steps.end_time_unix_nano]
    times += [reply.start_time_unix_nano, reply.end_time_unix_nano, request.end_time_unix_nano]
    assert times == sorted(times)
    values = attributes(request)
    generates = name in GENERATING
    operation = {"embed": "embeddings"}.get(name, "text_completion" if generates else "classify")
    assert values["gen_ai.operation.name"] == operation
    assert values["gen_ai.request.model"] == ("characters" if generates else "question")
    assert values["gen_ai.usage.input_tokens"] == (8 if generates else 2)
    assert values["gen_ai.usage.output_tokens"] == (5 if generates else 0)
    assert values.get("gen_ai.response.finish_reasons") == (["length"] if generates else None)
    assert values["sruserve.outcome"] == "ok"


def _is_part_or_asks(span: Span) -> bool:
    return bool(span.name in ("queue", "steps", "reply") or _has_model(span))


def _has_model(span: Span) -> bool:
    return "gen_ai.request.model" in attributes(span)


def test_a_resource_says_which_process_of_which_service_it_is(traced: Traced) -> None:
    client, rpc, collector = traced
    trace, _, headers = new_parent()
    stream(client, rpc, "who", headers)
    until_complete(collector, trace)
    (resource,) = {tuple(sorted(r.items())) for s, r in collector.spans if s.trace_id == trace}
    values = dict(resource)
    assert (values["service.name"], values["deployment.environment"]) == ("sruserve", "test")
    assert values["service.instance.id"]
    assert values["process.pid"]


def test_traces_of_concurrent_requests_are_never_mixed(traced: Traced) -> None:
    client, rpc, collector = traced
    # a socket's opening and the creation of a stream are requests of their own
    names = [name for name in ROUTES if name not in ("talk", "step")]
    words = [word for word in WORDS if word.islower() and word.isalpha()]

    def ask(number: int) -> tuple[str, int, bytes, bytes]:
        """A request with a number of tokens that no other one of its kind has."""
        name = names[number % len(names)]
        generates, count = name in GENERATING, 1 + number
        text = "x" * count if generates else " ".join([words[0]] * count)
        trace, parent, headers = new_parent()
        ROUTES[name][0](client, rpc, text, headers)
        return name, count, trace, parent

    with ThreadPoolExecutor(REQUESTS) as pool:
        requests = list(pool.map(ask, range(REQUESTS)))
    for name, count, trace, parent in requests:
        spans = until_complete(collector, trace)
        request = spans.pop(ROUTES[name][1])
        assert request.parent_span_id == parent
        assert set(spans) == {"queue", "steps", "reply"}
        assert {span.parent_span_id for span in spans.values()} == {request.span_id}
        assert attributes(request)["gen_ai.usage.input_tokens"] == count
    ids = [span.span_id for span, _ in collector.spans]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("header", ["", "nonsense", "00-" + "0" * 32 + "-" + "1" * 16 + "-01"])
def test_a_malformed_parent_begins_a_new_trace(traced: Traced, header: str) -> None:
    client, _, collector = traced
    number = secrets.token_hex(4)
    request_id = f"{number}-0000-4000-8000-000000000000"
    body = {"model": "question", "input": "who"}
    headers = {"traceparent": header, "x-request-id": request_id}
    client.post("/v1/classify", json=body, headers=headers).raise_for_status()

    def requests() -> list[Span]:
        spans = collector.named("POST /v1/classify")
        return [s for s in spans if attributes(s)["sruserve.request_id"] == request_id]

    until(lambda: bool(requests()))
    (request,) = requests()
    assert request.parent_span_id == b""
    assert any(request.trace_id)


def test_two_parents_are_as_good_as_none(traced: Traced) -> None:
    client, _, collector = traced
    one, other = new_parent(), new_parent()
    headers = [("traceparent", each[2]["traceparent"]) for each in (one, other)]
    before = len(collector.named("POST /v1/classify"))
    client.post("/v1/classify", json={"model": "question", "input": "who"}, headers=headers)
    until(lambda: len(collector.named("POST /v1/classify")) == before + 1)
    assert not spans_of(collector, one[0]) + spans_of(collector, other[0])


def test_what_its_client_does_not_record_is_not_recorded(traced: Traced) -> None:
    client, rpc, collector = traced
    silent, _, headers = new_parent(flags="00")
    stream(client, rpc, "who", headers)
    recorded, _, headers = new_parent()
    stream(client, rpc, "who", headers)
    until_complete(collector, recorded)
    assert spans_of(collector, silent) == []


def test_an_error_is_named_and_only_the_server_s_own_marks_the_span(traced: Traced) -> None:
    client, _, collector = traced
    trace, _, headers = new_parent()
    reply = client.post("/v1/classify", json={"model": "question", "input": ""}, headers=headers)
    assert reply.status_code == 422
    until(lambda: len(spans_of(collector, trace)) == 1)
    (request,) = spans_of(collector, trace)
    values = attributes(request)
    assert (values["error.type"], values["http.response.status_code"]) == ("empty_input", 422)
    assert values["sruserve.outcome"] == "invalid"
    assert request.status.code == Status.STATUS_CODE_UNSET


def test_metrics_of_completions_are_recorded(traced: Traced) -> None:
    client, rpc, collector = traced
    body = {"model": "other", "prompt": "who", "max_tokens": 5}  # no other test asks it
    for streams in (True, False):
        reply = client.post("/v1/completions", json=body | {"stream": streams})
        reply.raise_for_status()
    ROUTES["classify"][0](client, rpc, "who", {})
    counts = {"request.duration": 2, "time_to_first_token": 1, "time_per_output_token": 1}
    until(lambda: {name: _count(collector, name) for name in counts} == counts)
    for name in counts:
        (point,) = _points(collector, name)
        assert attributes(point)["gen_ai.operation.name"] == "text_completion"
        assert point.sum > 0


def _count(collector: Collector, name: str) -> int:
    return sum(each.count for each in _points(collector, name))


def _points(collector: Collector, name: str) -> list[Any]:
    points = collector.metrics.get(f"gen_ai.server.{name}", ())
    return [each for each in points if attributes(each)["gen_ai.request.model"] == "other"]


def test_no_text_of_a_request_is_in_an_attribute(traced: Traced) -> None:
    client, rpc, collector = traced
    secret = f"secret{secrets.token_hex(8)}"
    for name, (ask, _) in ROUTES.items():
        trace, _, headers = new_parent()
        ask(client, rpc, f"{secret} who", {**headers, "x-request-id": secret, "tracestate": secret})
        until(lambda trace=trace: len(spans_of(collector, trace)) >= 4)  # type: ignore[misc]
        assert name
    client.get(f"/{secret}?{secret}")
    client.post("/v1/classify", json={"model": secret, "input": "a"})
    trace, _, headers = new_parent()
    stream(client, rpc, "who", headers)
    until_complete(collector, trace)
    assert secret.encode() not in collector.bytes
    assert secret not in str(collector.spans)
    assert b"gen_ai" in collector.bytes or "gen_ai" in str(collector.spans)
