"""The series that Prometheus reads: their names, their labels, their buckets."""

from typing import NamedTuple

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

from sruserve.server.metrics.files import WORKER_RESTARTS

disable_created_metrics()  # type: ignore[no-untyped-call]  # unused series

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

REQUESTS = Counter("sru_requests_total", "Requests by outcome.", ("model", "route", "outcome"))
REQUEST_TIME = Histogram(
    "sru_request_seconds", "Request read until reply sent.", ("model", "route"),
    buckets=_REQUEST_SECONDS,
)  # fmt: skip
REFUSALS = Counter(
    "sru_refusals_total", "Requests that ended in an error, by its code.", ("model", "reason")
)
DISCONNECTS = Counter(
    "sru_client_disconnects_total", "Clients that left before their reply.", ("model",)
)
QUEUE_TIME = Histogram(
    "sru_queue_seconds", "Submitted until the first step.", ("model",), buckets=_WAIT_SECONDS
)
FIRST_CHARACTER = Histogram(
    "sru_first_character_seconds", "Streamed completion read until its first text.", ("model",),
    buckets=_WAIT_SECONDS,
)  # fmt: skip
CHARACTER_GAP = Histogram(
    "sru_character_gap_seconds", "Streamed completion: from one piece of its text to the next.",
    ("model",), buckets=_WAIT_SECONDS,
)  # fmt: skip
BATCH_SIZE = Histogram("sru_batch_size", "Sequences per step.", ("model",), buckets=_SEQUENCES)
STEP_TOKENS = Histogram("sru_step_tokens", "Tokens per step.", ("model",), buckets=_TOKENS)
STEP_TIME = Histogram("sru_step_seconds", "Duration of a step.", ("model",), buckets=_STEP_SECONDS)
CHARACTERS = Counter("sru_generated_characters_total", "Characters generated.", ("model",))
TOKENS_OUT = Counter("sru_generated_tokens_total", "Tokens generated.", ("model",))
TOKENS_IN = Counter("sru_input_tokens_total", "Tokens read from requests.", ("model",))
REPLAYS = Counter(
    "sru_replays_total", "Streams computed again up to a stop found inside a burst.", ("model",)
)
STREAMS = Gauge(
    "sru_streams", "Streams whose state is held.", ("model", "tier"), multiprocess_mode="livesum"
)
STATE_BYTES = Gauge(
    "sru_state_bytes", "Memory of those states.", ("model", "tier"), multiprocess_mode="livesum"
)
STATE_LIMIT = Gauge(
    "sru_state_limit_bytes", "Limit of that memory.", ("model", "tier"), multiprocess_mode="livesum"
)
STATE_FILL = Gauge(
    "sru_state_fill_ratio",
    "Memory of states in all tiers, as a share of its limit, in the engine where it is largest.",
    ("model",), multiprocess_mode="livemax",
)  # fmt: skip
QUEUED = Gauge("sru_queue_requests", "Requests that wait.", ("model",), multiprocess_mode="livesum")
QUEUE_LIMIT = Gauge(
    "sru_queue_limit_requests", "Limit of the requests that wait.", ("model",),
    multiprocess_mode="livesum",
)  # fmt: skip
QUEUE_FILL = Gauge(
    "sru_queue_fill_ratio",
    "Requests that wait, as a share of their limit, in the engine where it is largest.",
    ("model",), multiprocess_mode="livemax",
)  # fmt: skip
RUNNING = Gauge(
    "sru_running", "Sequences that are computed.", ("model",), multiprocess_mode="livesum"
)
CONNECTIONS = Gauge(
    "sru_connections", "Open HTTP and WebSocket connections.", multiprocess_mode="livesum"
)
CONNECTION_LIMIT = Gauge(
    "sru_connections_limit", "Limit of the open connections.", multiprocess_mode="livesum"
)
SOCKETS = Gauge("sru_sockets", "Open WebSockets.", multiprocess_mode="livesum")
SEAL_TIME = Histogram(
    "sru_state_mint_seconds", "Sealing of a state token.", ("model",), buckets=_STATE_SECONDS
)
OPEN_TIME = Histogram(
    "sru_state_open_seconds", "Opening of a state token.", ("model",), buckets=_STATE_SECONDS
)
REJECTED = Counter(
    "sru_state_rejected_total", "Refused state tokens by error code.", ("model", "reason")
)
HELD = Gauge(
    "sru_held_streams", "Server-held streams in memory.", ("model",), multiprocess_mode="livesum"
)
STREAM_STEPS = Counter(
    "sru_stream_steps_total", "Steps of server-held streams: computed, or repeated from the store.",
    ("model", "outcome"),
)  # fmt: skip
IDLE_TIME = Histogram(
    "sru_stream_idle_seconds", "How long a server-held stream was idle before a step.", ("model",),
    buckets=_IDLE_SECONDS,
)  # fmt: skip
EXPIRED = Counter(
    "sru_streams_expired_total", "Server-held streams that were idle for too long.", ("model",)
)
VERSIONS = Gauge(
    "sru_model_versions",
    "Versions of a model in memory: current, split (a part of new requests), older, or ending.",
    ("model", "state"), multiprocess_mode="livemax",
)  # fmt: skip
VERSIONS_ENDED = Counter(
    "sru_model_versions_ended_total",
    "Versions no longer served: over (no state can arrive), request, or early: versions, memory, "
    "and start (left out by a server that started).",
    ("model", "reason"),
)  # fmt: skip
VERSIONS_LIMIT = Gauge(
    "sru_model_versions_limit", "Limit of the versions of each model.", multiprocess_mode="livemax"
)
CERTIFICATE_EXPIRY = Gauge(
    "sru_tls_certificate_expiry_seconds",
    "When the server's TLS certificate ends, in Unix time: the earliest of the workers. Zero "
    "without TLS.", multiprocess_mode="livemin",
)  # fmt: skip
BUILD = Gauge("sru_build_info", "Always 1.", ("version", "kernel"), multiprocess_mode="max")
GPU_MEMORY = Gauge(
    "sru_gpu_memory_bytes",
    "GPU memory of the workers: their limit, what they have reserved, and what of it is in use. "
    "Zero on a CPU.",
    ("kind",), multiprocess_mode="livesum",
)  # fmt: skip
RESTARTS = Counter(*WORKER_RESTARTS)


class Collected(NamedTuple):
    """A series that is read with the page, instead of recorded."""

    name: str
    type: str
    help: str
    labels: tuple[str, ...] = ()


START = Collected("sru_start_time_seconds", "gauge", "When the server started, in Unix time.")
WORKER_CPU = Collected(
    "sru_worker_cpu_seconds_total", "counter", "CPU time of a worker, by its process id.",
    ("worker",),
)  # fmt: skip
WORKER_MEMORY = Collected(
    "sru_worker_memory_bytes", "gauge", "Resident memory of a worker.", ("worker",)
)
WORKER_FILES = Collected(
    "sru_worker_open_files", "gauge", "Open files and sockets of a worker.", ("worker",)
)
MODEL_INFO = Collected(
    "sru_model_info", "gauge",
    "Always 1: a version that is served, with 16 digits of its digest. The state is that of "
    "sru_model_versions.",
    ("model", "version", "digest", "state"),
)  # fmt: skip
OF_PROCESSES = (START, WORKER_CPU, WORKER_MEMORY, WORKER_FILES)
COLLECTED = (*OF_PROCESSES, MODEL_INFO)
