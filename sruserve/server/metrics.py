"""Prometheus metrics: what each one is, who may record it, and how they are read.

Every event is recorded in one place: engine events through `EngineMetrics`, requests through
`RouteMetrics`, states through `StateMetrics`, server-held streams through `StreamMetrics`. All are
labelled with the model; none with anything that a client can choose.
"""

import os
from dataclasses import dataclass
from functools import cache

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

UNKNOWN_MODEL = "unknown"

_REQUEST_SECONDS = (
    *(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
    *(30.0, 60.0, 300.0),
)
_WAIT_SECONDS = (0.0001, *_REQUEST_SECONDS[:-2])
_STEP_SECONDS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
_STATE_SECONDS = (0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05)
_IDLE_SECONDS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 86400.0)
_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

_REQUESTS = Counter("sru_requests_total", "Requests by outcome.", ("model", "route", "outcome"))
_REQUEST_TIME = Histogram(
    "sru_request_seconds", "Request read until reply sent.", ("model", "route"),
    buckets=_REQUEST_SECONDS,
)  # fmt: skip
_REFUSALS = Counter(
    "sru_refusals_total", "Requests that ended in an error, by its code.", ("model", "reason")
)
_DISCONNECTS = Counter(
    "sru_client_disconnects_total", "Clients that left before their reply.", ("model",)
)
_QUEUE_TIME = Histogram(
    "sru_queue_seconds", "Submitted until the first step.", ("model",), buckets=_WAIT_SECONDS
)
_FIRST_CHARACTER = Histogram(
    "sru_first_character_seconds", "Streamed completion read until its first text.", ("model",),
    buckets=_WAIT_SECONDS,
)  # fmt: skip
_BATCH_SIZE = Histogram("sru_batch_size", "Sequences per step.", ("model",), buckets=_SEQUENCES)
_STEP_TOKENS = Histogram("sru_step_tokens", "Tokens per step.", ("model",), buckets=_TOKENS)
_STEP_TIME = Histogram("sru_step_seconds", "Duration of a step.", ("model",), buckets=_STEP_SECONDS)
_CHARACTERS = Counter("sru_generated_characters_total", "Characters generated.", ("model",))
_TOKENS_OUT = Counter("sru_generated_tokens_total", "Tokens generated.", ("model",))
_TOKENS_IN = Counter("sru_input_tokens_total", "Tokens read from requests.", ("model",))
_REPLAYS = Counter(
    "sru_replays_total", "Streams computed again up to a stop found inside a burst.", ("model",)
)
_STREAMS = Gauge(
    "sru_streams", "Streams whose state is held.", ("model", "tier"), multiprocess_mode="livesum"
)
_STATE_BYTES = Gauge(
    "sru_state_bytes", "Memory of those states.", ("model", "tier"), multiprocess_mode="livesum"
)
_QUEUED = Gauge(
    "sru_queue_requests", "Requests that wait.", ("model",), multiprocess_mode="livesum"
)
_RUNNING = Gauge(
    "sru_running", "Sequences that are computed.", ("model",), multiprocess_mode="livesum"
)
_MINT_TIME = Histogram(
    "sru_state_mint_seconds", "Sealing of a state token.", ("model",), buckets=_STATE_SECONDS
)
_OPEN_TIME = Histogram(
    "sru_state_open_seconds", "Opening of a state token.", ("model",), buckets=_STATE_SECONDS
)
_REJECTED = Counter(
    "sru_state_rejected_total", "Refused state tokens by error code.", ("model", "reason")
)
_HELD = Gauge(
    "sru_held_streams", "Server-held streams in memory.", ("model",), multiprocess_mode="livesum"
)
_STREAM_STEPS = Counter(
    "sru_stream_steps_total", "Steps of server-held streams: computed, or repeated from the store.",
    ("model", "outcome"),
)  # fmt: skip
_IDLE_TIME = Histogram(
    "sru_stream_idle_seconds", "How long a server-held stream was idle before a step.", ("model",),
    buckets=_IDLE_SECONDS,
)  # fmt: skip
_EXPIRED = Counter(
    "sru_streams_expired_total", "Server-held streams that were idle for too long.", ("model",)
)
_BUILD = Gauge("sru_build_info", "Always 1.", ("version", "kernel"), multiprocess_mode="max")


@dataclass(slots=True)
class Tally:
    """How often something happened, and how long it took in all."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds


class StepTallies:
    """What KServe's statistics tell of a model's steps, which no histogram could."""

    def __init__(self) -> None:
        self.queue = Tally()
        self.by_size: dict[int, Tally] = {}

    def step(self, sequences: int, seconds: float) -> None:
        self.by_size.setdefault(sequences, Tally()).add(seconds)

    def read(self) -> tuple[Tally, dict[int, Tally]]:
        """The waits for a first step, and the steps by how many sequences they had."""
        return self.queue, dict(self.by_size)


_steps: dict[str, StepTallies] = {}


def steps_of(model_name: str) -> StepTallies:
    """The tallies of a model in this process."""
    return _steps.setdefault(model_name, StepTallies())


class EngineMetrics:
    """What one model's engine reports. Cheap, and safe to call from any thread."""

    def __init__(self, model_name: str) -> None:
        self._queued = _QUEUE_TIME.labels(model_name).observe
        self._steps = steps_of(model_name)
        self.consumed = _TOKENS_IN.labels(model_name).inc
        self.replayed = _REPLAYS.labels(model_name).inc
        self._sequences = _BATCH_SIZE.labels(model_name).observe
        self._step_tokens = _STEP_TOKENS.labels(model_name).observe
        self._step_seconds = _STEP_TIME.labels(model_name).observe
        self._tokens = _TOKENS_OUT.labels(model_name).inc
        self._characters = _CHARACTERS.labels(model_name).inc
        self._waiting = _Part(_QUEUED.labels(model_name))
        self._running = _Part(_RUNNING.labels(model_name))
        self._model_name = model_name
        self._tiers: dict[str, tuple[_Part, _Part]] = {}

    def queued(self, seconds: float) -> None:
        """A request waited so long for its first step."""
        self._queued(seconds)
        self._steps.queue.add(seconds)

    def step(self, sequences: int, tokens: int, seconds: float) -> None:
        """One forward pass over `tokens` tokens of `sequences` sequences."""
        self._steps.step(sequences, seconds)
        self._sequences(sequences)
        self._step_tokens(tokens)
        self._step_seconds(seconds)

    def generated(self, tokens: int, characters: int) -> None:
        """Output of completions, as it is delivered."""
        self._tokens(tokens)
        self._characters(characters)

    def occupancy(self, waiting: int, running: int) -> None:
        """Waiting requests and running sequences."""
        self._waiting.tell(waiting)
        self._running.tell(running)

    def states(self, tier: str, streams: int, state_bytes: int) -> None:
        """Held states and their memory in a tier: "pool" on a CPU, "device" on a GPU, or "host"."""
        if tier not in self._tiers:
            labels = (self._model_name, tier)
            self._tiers[tier] = _Part(_STREAMS.labels(*labels)), _Part(_STATE_BYTES.labels(*labels))
        held, held_bytes = self._tiers[tier]
        held.tell(streams)
        held_bytes.tell(state_bytes)

    def ended(self) -> None:
        """The engine is no more, and holds nothing."""
        self.occupancy(0, 0)
        for tier in self._tiers:
            self.states(tier, 0, 0)


class _Part:
    """What one engine adds to a gauge: while a model is replaced, it has two of them."""

    def __init__(self, gauge: Gauge) -> None:
        self._add, self._told = gauge.inc, 0

    def tell(self, value: int) -> None:
        if value != self._told:  # told after every step, and mostly the same
            self._add(value - self._told)
            self._told = value


class RouteMetrics:
    """The requests of one model on one route: each is finished exactly once."""

    def __init__(self, model_name: str, route: str) -> None:
        self._labels = (model_name, route)
        self._seconds = _REQUEST_TIME.labels(model_name, route).observe
        self._outcomes = {
            outcome: _REQUESTS.labels(model_name, route, outcome).inc
            for outcome in ("ok", "invalid", "refused", "cancelled", "error")
        }
        self.disconnected = _DISCONNECTS.labels(model_name).inc
        self.first_character = _FIRST_CHARACTER.labels(model_name).observe

    def finish(self, outcome: str, seconds: float, reason: str | None = None) -> None:
        """Count a request by its outcome, and by the code of the error that ended it."""
        self._outcomes[outcome]()
        self._seconds(seconds)
        if reason is not None:
            _REFUSALS.labels(self._labels[0], reason).inc()


class StateMetrics:
    """The state tokens of one model."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self.minted = _MINT_TIME.labels(model_name).observe
        self.opened = _OPEN_TIME.labels(model_name).observe

    def rejected(self, reason: str) -> None:
        """A token was refused for the reason with this error code."""
        _REJECTED.labels(self._model_name, reason).inc()


class StreamMetrics:
    """The server-held streams of one model."""

    def __init__(self, model_name: str) -> None:
        self.held = _HELD.labels(model_name).inc  # by 1, or by -1
        self.repeated = _STREAM_STEPS.labels(model_name, "repeated").inc
        self._computed = _STREAM_STEPS.labels(model_name, "computed").inc
        self._idle = _IDLE_TIME.labels(model_name).observe
        self.expired = _EXPIRED.labels(model_name).inc

    def computed(self, idle_seconds: float) -> None:
        """A step was done, of a stream that had been idle for so long."""
        self._computed()
        self._idle(idle_seconds)


@cache
def stream_metrics(model_name: str) -> StreamMetrics:
    """The metrics of a served model's streams, which several places record."""
    return StreamMetrics(model_name)


def describe_build(version: str, kernel: str) -> None:
    """Export which version runs, on which kernel."""
    _BUILD.labels(version, kernel).set(1)


def forget_process(pid: int) -> None:
    """Take a worker that has ended out of the sums of gauges."""
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        mark_process_dead(pid)  # type: ignore[no-untyped-call]


def render() -> tuple[bytes, str]:
    """All metrics as text, of all workers if there are several, and its content type."""
    registry = REGISTRY
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry), CONTENT_TYPE_LATEST
