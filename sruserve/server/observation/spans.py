"""The spans of a request that has ended: request, and in it queue, steps and reply."""

from collections.abc import Mapping
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode

from sruserve.server.observation.observation import Observation
from sruserve.server.observation.traceparent import TraceParent

Value = str | int | list[str]
PROVIDER: Final = "sruserve"


class Spans:
    """Makes the spans of requests. No attribute is a text that a client has chosen.

    tracer: exports them.
    """

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def __call__(self, observation: Observation) -> None:
        """Make the spans of one request, unless the sampler leaves it out."""
        span = self._tracer.start_span(
            _name(observation),
            _context(observation.described.parent),
            SpanKind.SERVER,
            attributes=_attributes(observation),
            start_time=_epoch_ns(observation, observation.begin),
        )
        context = span.get_span_context()
        if context.is_valid:
            observation.trace_id = context.trace_id
        if not span.is_recording():
            return
        if _is_servers_fault(observation):
            span.set_status(Status(StatusCode.ERROR, observation.reason))
        self._add_parts(observation, trace.set_span_in_context(span, Context()))
        span.end(observation.ended_ns)

    def _add_parts(self, observation: Observation, inside: Context) -> None:
        ended = 0.0
        for job in observation.jobs:
            self._add("queue", observation, inside, job.submitted, job.begun or job.ended)
            if job.begun:
                self._add("steps", observation, inside, job.begun, job.ended)
            ended = max(ended, job.ended)
        if ended and observation.outcome == "ok":
            self._add("reply", observation, inside, ended, observation.ended)

    def _add(
        self, name: str, observation: Observation, inside: Context, begin: float, end: float
    ) -> None:
        span = self._tracer.start_span(name, inside, start_time=_epoch_ns(observation, begin))
        span.end(_epoch_ns(observation, end))


def _name(observation: Observation) -> str:
    described = observation.described
    if described.protocol == "grpc":
        return observation.route.removeprefix("/")
    return f"{described.method or described.protocol} {observation.route}"


def _context(parent: TraceParent | None) -> Context:
    """The context of a request; an empty one begins a new trace."""
    if parent is None:
        return Context()
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if parent.sampled else 0)
    remote = trace.SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(trace.NonRecordingSpan(remote), Context())


def _epoch_ns(observation: Observation, moment: float) -> int:
    """A moment on `time.monotonic()`, since the epoch."""
    return observation.ended_ns - round(1e9 * (observation.ended - moment))


def _is_servers_fault(observation: Observation) -> bool:
    status = observation.described.status
    return observation.outcome == "error" or (isinstance(status, int) and status >= 500)


def _attributes(observation: Observation) -> Mapping[str, Value]:
    described = observation.described
    attributes: dict[str, Value] = {
        "sruserve.protocol": described.protocol,
        "sruserve.request_id": described.request_id,
        "sruserve.outcome": observation.outcome,
    }
    if observation.reason is not None:
        attributes["error.type"] = observation.reason
    if described.protocol == "grpc":
        attributes |= {"rpc.system": "grpc", "rpc.method": observation.route.removeprefix("/")}
        if described.status is not None:
            attributes["rpc.response.status_code"] = described.status
    else:
        attributes["http.route"] = observation.route
        if described.method is not None:
            attributes["http.request.method"] = described.method
        if described.status is not None:
            attributes["http.response.status_code"] = described.status
    if observation.kind is not None:
        attributes |= {
            "gen_ai.operation.name": observation.kind.operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": observation.model,
            "gen_ai.response.model": observation.model,
            "gen_ai.usage.input_tokens": observation.input_tokens,
            "gen_ai.usage.output_tokens": observation.output_tokens,
        }
        if observation.finish_reasons:
            attributes["gen_ai.response.finish_reasons"] = observation.finish_reasons
    return attributes
