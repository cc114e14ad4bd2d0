"""Prometheus metrics: record and render them. `definitions.py` defines the series.

Every event is recorded in one place: engine events through `EngineMetrics`, requests through
`RouteMetrics`, states through `StateMetrics`, server-held streams through `StreamMetrics`, sockets
through `SocketMetrics`. All but the sockets are labelled with the model; no label has a value that
a client can choose.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Gauge,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from sruserve.server.errors import (
    DeadlineExceeded,
    Draining,
    EngineFailure,
    InternalError,
    OutOfDeviceMemory,
    Overloaded,
    RateLimited,
    StateQuotaExceeded,
    StateRefused,
    StoreUnavailable,
)
from sruserve.server.metrics import definitions as series
from sruserve.server.metrics import files as metric_files
from sruserve.server.metrics.fill import Fill
from sruserve.server.metrics.processes import ProcessCollector
from sruserve.server.metrics.recording import batch_observer, counter, observer
from sruserve.server.metrics.served_versions import SERVED_VERSIONS, ServedVersion
from sruserve.server.metrics.step_statistics import step_statistics

UNKNOWN_MODEL = "unknown"
# Exported before they happen: Prometheus sees a counter grow only if it has seen it before.
_ALERTED = (
    *(Overloaded, DeadlineExceeded, OutOfDeviceMemory, StoreUnavailable),
    *(RateLimited, StateQuotaExceeded, Draining, EngineFailure, InternalError),
)
if metric_files.VARIABLE not in os.environ:
    REGISTRY.register(ProcessCollector())
    REGISTRY.register(SERVED_VERSIONS)


class EngineMetrics:
    """The metrics of one model's engine. Cheap, and safe to call from any thread."""

    def __init__(self, model_name: str) -> None:
        self._queued = batch_observer(series.QUEUE_TIME.labels(model_name))
        self._steps = step_statistics(model_name)
        self.consumed = counter(series.TOKENS_IN.labels(model_name))
        self.replayed = series.REPLAYS.labels(model_name).inc
        self._sequences = observer(series.BATCH_SIZE.labels(model_name))
        self._step_tokens = observer(series.STEP_TOKENS.labels(model_name))
        self._step_seconds = observer(series.STEP_TIME.labels(model_name))
        self._tokens = counter(series.TOKENS_OUT.labels(model_name))
        self._characters = counter(series.CHARACTERS.labels(model_name))
        self._waiting = _Part(series.QUEUED.labels(model_name))
        self._running = _Part(series.RUNNING.labels(model_name))
        self._model_name = model_name
        self._tiers: dict[str, tuple[_Part, _Part]] = {}
        self._limits: list[_Part] = []
        self._queue_fill = Fill(series.QUEUE_FILL.labels(model_name))
        self._state_fill = Fill(series.STATE_FILL.labels(model_name))

    def queued(self, waits: Sequence[float]) -> None:
        """Record the seconds that requests have waited for their first step."""
        self._queued(waits)
        self._steps.queue.add(sum(waits), len(waits))

    def step(self, sequences: int, tokens: int, seconds: float) -> None:
        """Record a forward pass over `tokens` tokens of `sequences` sequences."""
        self._steps.step(sequences, seconds)
        self._sequences(sequences)
        self._step_tokens(tokens)
        self._step_seconds(seconds)

    def generated(self, tokens: int, characters: int) -> None:
        """Record delivered output of completions."""
        self._tokens(tokens)
        self._characters(characters)

    def occupancy(self, waiting: int, running: int) -> None:
        """Set the numbers of waiting requests and running sequences."""
        self._waiting.set(waiting)
        self._running.set(running)
        self._queue_fill.set(waiting)

    def states(self, tier: str, streams: int, state_bytes: int) -> None:
        """Set states and their memory in a tier: "pool" on a CPU, "device" on a GPU, or "host"."""
        if tier not in self._tiers:
            labels = (self._model_name, tier)
            self._tiers[tier] = (
                _Part(series.STREAMS.labels(*labels)),
                _Part(series.STATE_BYTES.labels(*labels)),
            )
        count, byte_count = self._tiers[tier]
        count.set(streams)
        byte_count.set(state_bytes)
        self._state_fill.set(sum(used.value for _, used in self._tiers.values()))

    def limits(self, queue_requests: int, state_bytes: Mapping[str, int]) -> None:
        """Set the limits of the waiting requests, and of the states in each tier, once."""
        limits = [(series.QUEUE_LIMIT.labels(self._model_name), queue_requests)]
        for tier, tier_bytes in state_bytes.items():
            limits.append((series.STATE_LIMIT.labels(self._model_name, tier), tier_bytes))
        for gauge, limit in limits:
            part = _Part(gauge)
            part.set(limit)
            self._limits.append(part)
        self._queue_fill.limit(queue_requests)
        self._state_fill.limit(sum(state_bytes.values()))

    def ended(self) -> None:
        """Set all to zero, because the engine has ended."""
        self.occupancy(0, 0)
        for limit in self._limits:
            limit.set(0)
        for tier in self._tiers:
            self.states(tier, 0, 0)
        for fill in (self._queue_fill, self._state_fill):
            fill.ended()


class _Part:
    """One engine's part of a gauge; a model has two engines while it is replaced."""

    def __init__(self, gauge: Gauge) -> None:
        self._add, self.value = gauge.inc, 0

    def set(self, value: int) -> None:
        if value != self.value:  # set after every step, and mostly unchanged
            self._add(value - self.value)
            self.value = value


class RouteMetrics:
    """The requests of one model on one route: each is finished exactly once."""

    def __init__(self, model_name: str, route: str) -> None:
        self._model_name = model_name
        self._seconds = observer(series.REQUEST_TIME.labels(model_name, route))
        self._outcomes = {
            outcome: counter(series.REQUESTS.labels(model_name, route, outcome))
            for outcome in ("ok", "invalid", "refused", "cancelled", "error")
        }
        self.disconnected = series.DISCONNECTS.labels(model_name).inc
        for refusal in _ALERTED:
            series.REFUSALS.labels(model_name, refusal.code)

    def finish(self, outcome: str, seconds: float, reason: str | None = None) -> None:
        """Count a request by its outcome, and by the code of the error that ended it."""
        self._outcomes[outcome](1)
        self._seconds(seconds)
        if reason is not None:
            series.REFUSALS.labels(self._model_name, reason).inc()


def first_character(model_name: str, seconds: float) -> None:
    """Record the time from reading a streamed completion to its first text."""
    series.FIRST_CHARACTER.labels(model_name).observe(seconds)


@cache
def character_gap(model_name: str) -> Callable[[float], None]:
    """Records the time from one piece of a streamed text to the next."""
    return observer(series.CHARACTER_GAP.labels(model_name))


def connections_open(change: int) -> None:
    """Change the number of open connections."""
    series.CONNECTIONS.inc(change)


def connections_limit(limit: int) -> None:
    """Set the limit of open connections."""
    series.CONNECTION_LIMIT.set(limit)


class SocketMetrics:
    """The open WebSockets of all models."""

    opened, closed = series.SOCKETS.inc, series.SOCKETS.dec


class StateMetrics:
    """The state tokens of one model."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self.sealed = observer(series.SEAL_TIME.labels(model_name))
        self.opened = observer(series.OPEN_TIME.labels(model_name))
        for refusal in StateRefused.__subclasses__():
            series.REJECTED.labels(model_name, refusal.code)

    def rejected(self, reason: str) -> None:
        """Record a refused token by its error code."""
        series.REJECTED.labels(self._model_name, reason).inc()


@cache
def state_metrics(model_name: str) -> StateMetrics:
    """The metrics of a served model's state tokens."""
    return StateMetrics(model_name)


class StreamMetrics:
    """The server-held streams of one model."""

    def __init__(self, model_name: str) -> None:
        self.add_streams = series.HELD.labels(model_name).inc  # by 1, or by -1
        self.repeated = series.STREAM_STEPS.labels(model_name, "repeated").inc
        self._computed = counter(series.STREAM_STEPS.labels(model_name, "computed"))
        self._idle = observer(series.IDLE_TIME.labels(model_name))
        self.expired = series.EXPIRED.labels(model_name).inc

    def computed(self, idle_seconds: float) -> None:
        """Record a step of a stream, and its idle time before the step."""
        self._computed(1)
        self._idle(idle_seconds)


@cache
def stream_metrics(model_name: str) -> StreamMetrics:
    """The metrics of a served model's streams."""
    return StreamMetrics(model_name)


class VersionMetrics:
    """The versions of one model."""

    _STATES = ("current", "split", "older", "ending")
    _REASONS = ("over", "request", "versions", "memory", "start")

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._gauges = [series.VERSIONS.labels(model_name, state) for state in self._STATES]
        for reason in self._REASONS:  # from zero on, so that Prometheus sees the first one
            series.VERSIONS_ENDED.labels(model_name, reason)

    def set(self, served: Sequence[ServedVersion], ending: int) -> None:
        """Set the versions that are served, and the number of those that end."""
        SERVED_VERSIONS.set(self._model_name, served)
        states = [each.state for each in served]
        for state, gauge in zip(self._STATES, self._gauges, strict=True):
            gauge.set(ending if state == "ending" else states.count(state))

    def ended(self, reason: str) -> None:
        """Count a version that is no longer served."""
        series.VERSIONS_ENDED.labels(self._model_name, reason).inc()


@cache
def version_metrics(model_name: str) -> VersionMetrics:
    """The metrics of a model's versions."""
    return VersionMetrics(model_name)


def versions_limit(limit: int) -> None:
    """Set the limit of the versions of each model."""
    series.VERSIONS_LIMIT.set(limit)


def certificate_expiry(ends: datetime) -> None:
    """Set when the certificate in force ends."""
    series.CERTIFICATE_EXPIRY.set(ends.timestamp())


def describe_build(version: str, kernel: str) -> None:
    """Export the version and the kernel."""
    series.BUILD.labels(version, kernel).set(1)


def gpu_memory(limit: int = 0, reserved: int = 0, used: int = 0) -> None:
    """Set a worker's limit of GPU memory, what it has reserved, and what of it is in use."""
    for kind, amount in (("limit", limit), ("reserved", reserved), ("used", used)):
        series.GPU_MEMORY.labels(kind).set(amount)


def render() -> tuple[bytes, str]:
    """All metrics as text, of all workers if there are several, and its content type."""
    if metric_files.VARIABLE not in os.environ:
        return generate_latest(REGISTRY), CONTENT_TYPE_LATEST
    folder = Path(os.environ[metric_files.VARIABLE])
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(folder))  # type: ignore[no-untyped-call]
    registry.register(ProcessCollector(folder))
    registry.register(SERVED_VERSIONS)
    with metric_files.reading(folder):
        return generate_latest(registry), CONTENT_TYPE_LATEST
