"""Send traces and metrics to a collector over OTLP, as the standard variables `OTEL_…` say."""

import os
import threading
import time
from collections.abc import Callable
from uuid import uuid4

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from sruserve import __version__
from sruserve.server.observation.collector_session import collector_session
from sruserve.server.observation.generation_metrics import GenerationMetrics
from sruserve.server.observation.observer import Consumer
from sruserve.server.observation.spans import Spans
from sruserve.server.settings import SettingsError

_PROTOCOL = "http/protobuf"
_NAME = "sruserve"


class Exports:
    """The exporters of this process. Each has a bounded queue, and a thread that empties it."""

    def __init__(self) -> None:
        """Raises `SettingsError` if a variable is invalid."""
        _check_protocol()
        self.consumers: list[Consumer] = []
        self._shut_down: list[Callable[[], None]] = []
        try:
            self._open()
        except ValueError as error:
            raise SettingsError(f"a variable OTEL_… is invalid: {error}") from None

    def _open(self) -> None:
        resource = _resource()
        if _is_wanted("OTEL_METRICS_EXPORTER"):
            reader = PeriodicExportingMetricReader(OTLPMetricExporter(session=collector_session()))
            meters = MeterProvider([reader], resource, shutdown_on_exit=False)
            self.consumers.append(GenerationMetrics(meters.get_meter(_NAME, __version__)))
            self._shut_down.append(meters.shutdown)
        if _is_wanted("OTEL_TRACES_EXPORTER"):
            tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
            tracers.add_span_processor(
                BatchSpanProcessor(OTLPSpanExporter(session=collector_session()))
            )
            self.consumers.append(Spans(tracers.get_tracer(_NAME, __version__)))
            self._shut_down.append(tracers.shutdown)

    def close(self, seconds: float) -> None:
        """Send what waits, at most some time."""
        deadline = time.monotonic() + seconds
        # daemons, because a collector that hangs must not delay the end of the process
        threads = [
            threading.Thread(target=each, name="exporter's end", daemon=True)
            for each in self._shut_down
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _resource() -> Resource:
    """This process, with what the variables say about it."""
    resource = Resource.create({"service.version": __version__})
    own: dict[str, str | int] = {"service.instance.id": str(uuid4()), "process.pid": os.getpid()}
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        own["service.name"] = _NAME
    return resource.merge(Resource({**own}))


def _is_wanted(variable: str) -> bool:
    return os.environ.get(variable, "").strip() != "none"


def _check_protocol() -> None:
    for variable in (
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
    ):
        value = os.environ.get(variable)
        if value and value != _PROTOCOL:
            raise SettingsError(
                f"{variable}={value}: traces are sent over {_PROTOCOL}; set it to that, and the "
                "port of the endpoint to the collector's for HTTP, usually 4318"
            )
