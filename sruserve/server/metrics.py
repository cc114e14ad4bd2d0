"""Prometheus metrics: what each one is, who may record it, and how they are read.

Every event is recorded in one place: engine events through `EngineMetrics`, requests through
`RouteMetrics`, sockets through `SocketMetrics`, states through `StateMetrics`. All but the sockets
are labelled with the model; none with anything that a client can choose.
"""

import os
from collections.abc import Callable

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
_SOCKETS = Gauge("sru_sockets", "Open WebSockets.", multiprocess_mode="livesum")
_MINT_TIME = Histogram(
    "sru_state_mint_seconds", "Sealing of a state token.", ("model",), buckets=_STATE_SECONDS
)
_OPEN_TIME = Histogram(
    "sru_state_open_seconds", "Opening of a state token.", ("model",), buckets=_STATE_SECONDS
)
_REJECTED = Counter(
    "sru_state_rejected_total", "Refused state tokens by error code.", ("model", "reason")
)
_BUILD = Gauge("sru_build_info", "Always 1.", ("version", "kernel"), multiprocess_mode="max")


class EngineMetrics:
    """What one model's engine reports. Cheap, and safe to call from any thread."""

    def __init__(self, model_name: str) -> None:
        self.queued = _QUEUE_TIME.labels(model_name).observe
        self.consumed = _TOKENS_IN.labels(model_name).inc
        self.replayed = _REPLAYS.labels(model_name).inc
        self._sequences = _BATCH_SIZE.labels(model_name).observe
        self._step_tokens = _STEP_TOKENS.labels(model_name).observe
        self._step_seconds = _STEP_TIME.labels(model_name).observe
        self._tokens = _TOKENS_OUT.labels(model_name).inc
        self._characters = _CHARACTERS.labels(model_name).inc
        self._waiting = _QUEUED.labels(model_name).set
        self._running = _RUNNING.labels(model_name).set
        self._model_name = model_name
        self._told: dict[str, int] = {}
        self._tiers: dict[str, tuple[Callable[[float], None], Callable[[float], None]]] = {}

    def step(self, sequences: int, tokens: int, seconds: float) -> None:
        """One forward pass over `tokens` tokens of `sequences` sequences."""
        self._sequences(sequences)
        self._step_tokens(tokens)
        self._step_seconds(seconds)

    def generated(self, tokens: int, characters: int) -> None:
        """Output of completions, as it is delivered."""
        self._tokens(tokens)
        self._characters(characters)

    def occupancy(self, waiting: int, running: int) -> None:
        """Waiting requests and running sequences."""
        self._waiting(waiting)
        self._running(running)

    def states(self, tier: str, streams: int, state_bytes: int) -> None:
        """Held states and their memory in a tier: "pool" on a CPU, "device" on a GPU, or "host"."""
        if self._told.get(tier) == streams:  # told after every step, and mostly the same
            return
        self._told[tier] = streams
        if tier not in self._tiers:
            labels = (self._model_name, tier)
            self._tiers[tier] = _STREAMS.labels(*labels).set, _STATE_BYTES.labels(*labels).set
        set_streams, set_bytes = self._tiers[tier]
        set_streams(streams)
        set_bytes(state_bytes)


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


class SocketMetrics:
    """The open WebSockets, of whatever model."""

    opened, closed = _SOCKETS.inc, _SOCKETS.dec


class StateMetrics:
    """The state tokens of one model."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self.minted = _MINT_TIME.labels(model_name).observe
        self.opened = _OPEN_TIME.labels(model_name).observe

    def rejected(self, reason: str) -> None:
        """A token was refused for the reason with this error code."""
        _REJECTED.labels(self._model_name, reason).inc()


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
