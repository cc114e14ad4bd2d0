"""An OpenTelemetry collector: it receives OTLP over HTTP and keeps what it decodes."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Resource = dict[str, Any]


class Collector:
    """What has arrived. spans: each with the attributes of its resource.

    may_answer: while it is cleared, no request is answered.
    """

    def __init__(self) -> None:
        self.spans: list[tuple[Span, Resource]] = []
        self.metrics: dict[str, list[Any]] = {}
        self.bytes = b""
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.requests = 0
        self.url = ""

    def take(self, path: str, body: bytes) -> bytes:
        """Decode a request; returns the reply."""
        self.requests += 1
        self.bytes += body
        self.may_answer.wait(120)
        if path == "/v1/traces":
            traces = ExportTraceServiceRequest.FromString(body)
            for resource_spans in traces.resource_spans:
                resource = attributes(resource_spans.resource)
                for scope in resource_spans.scope_spans:
                    self.spans += [(span, resource) for span in scope.spans]
            return bytes(ExportTraceServiceResponse().SerializeToString())
        assert path == "/v1/metrics"
        metrics = ExportMetricsServiceRequest.FromString(body)
        for resource_metrics in metrics.resource_metrics:
            for metric_scope in resource_metrics.scope_metrics:
                for metric in metric_scope.metrics:
                    self.metrics[metric.name] = list(metric.histogram.data_points)
        return bytes(ExportMetricsServiceResponse().SerializeToString())

    def named(self, name: str) -> list[Span]:
        """The spans of a name."""
        return [span for span, _ in self.spans if span.name == name]

    def parts(self, request: Span) -> dict[str, Span]:
        """The spans inside a request's, by name."""
        return {s.name: s for s, _ in self.spans if s.parent_span_id == request.span_id}


def attributes(owner: Any) -> dict[str, Any]:
    """The attributes of a span, a resource or a data point in Python's types."""
    return {each.key: _value(each.value) for each in owner.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens on a free port."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["content-type"] == "application/x-protobuf"
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            reply = collector.take(self.path, body)
            self.send_response(200)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        collector.may_answer.set()
        server.shutdown()
        thread.join()
        server.server_close()
