"""The settings of the server: `max_batch_tokens` is `SRUSERVE_MAX_BATCH_TOKENS`, and so on."""

import difflib
import os
import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveInt,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from sruserve.model.control_groups import SYSTEM, SystemFiles
from sruserve.model.machine import usable_cores
from sruserve.model.names import DType
from sruserve.model.versions import VERSION_MARK
from sruserve.server.auth import STREAM_BYTES
from sruserve.server.field_bounds import allowed_setting
from sruserve.server.key_entries import KeyEntry, read_keys
from sruserve.server.key_ring import KeyRing
from sruserve.server.origin_list import read_origins
from sruserve.server.tls.certificates import Certificates
from sruserve.server.tls.credentials import TlsFiles, UnfitCertificate

PREFIX = "SRUSERVE_"
_TEN_YEARS = 10 * 366 * 24 * 3600
_C_INT = 2**31 - 1  # the largest limit of gRPC's core, which counts milliseconds
_MAX_SHOWN = 200  # characters of a value in an error
_DEVICES = re.compile(r"auto|cpu|cuda(:\d{1,3})?", re.ASCII)


_FORMER_NAMES = {"max_token_bytes": "max_state_token_bytes"}
_ALL_SETTINGS = "`sruserve settings` lists all"


class SettingsError(ValueError):
    """An invalid setting; the message names the variable and the change to make."""


class Settings(BaseSettings):
    """Every setting of the server. The descriptions are the documentation."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        env_ignore_empty=True,
        allow_inf_nan=False,
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="TCP port; 0 takes a free one.")
    grpc_port: int | None = Field(
        8001,
        ge=0,
        le=65535,
        description="TCP port of KServe v2 over gRPC; 0 takes a free one; `off` disables gRPC, as "
        "if `sruserve[grpc]` were not installed.",
    )
    models: Path | None = Field(
        None,
        description="Folder whose sub-folders are the models to serve; unset: the bundled ones.",
    )
    model_folders: tuple[Path, ...] = Field(
        (),
        description="Models to serve, as a JSON list of model folders and names of bundled models; "
        "overrides `SRUSERVE_MODELS`. The arguments of `sruserve serve` set it.",
    )
    default_models: str = Field(
        "question-type,shakespeare",
        description="Models that answer requests without `model` where several models do the task: "
        "names, separated by commas, at most one for each task. Names that are not served change "
        "nothing.",
    )
    model_control: bool | Literal["http"] = Field(
        False,
        description="Clients may load and unload models while the server runs; only those of the "
        "folders above. `http`: not over gRPC, whose calls a TCP proxy cannot refuse.",
    )
    model_versions: int = Field(
        4,
        ge=1,
        le=64,
        description="Most versions of one model that are served at once, each with its own memory: "
        "the current one, and older ones whose states may still arrive.",
    )
    workers: PositiveInt = Field(
        1, le=256, description="Server processes, each with its own engines."
    )
    worker_timeout_seconds: int = Field(
        60,
        ge=5,
        le=86_400,
        description="How long a worker may not respond before it is killed and replaced; a server "
        "of one worker ends then. Also how long an engine or the gRPC server may be "
        "dead; ten times as long for a single step.",
    )
    device: str = Field(
        "auto",
        description="Device to compute on: `cpu`, `cuda` (the first GPU), `cuda:1` and so on; "
        "`auto`: the first GPU if the kernels can run on it, otherwise the CPU.",
    )
    dtype: DType | dict[str, DType] | None = Field(
        None,
        description="Compute dtype of all models: `float32`, `bfloat16` or, on a GPU, `float16`; "
        "or a JSON object of these by model name. Unset: the one in each model's config.json. "
        "Translation systems compute in float32.",
    )
    fast: bool = Field(
        False,
        description="GPU kernels chosen by the number of rows: faster, but splits, batches, "
        "restored states and seeds then agree to rounding, not bit for bit.",
    )
    onnx_allow_cpu: bool = Field(
        False,
        description="ONNX models may run on the CPU, whole or in part, where ONNX Runtime cannot "
        "run them on the GPU that is set; otherwise they are refused.",
    )
    gpu_memory_bytes: NonNegativeInt = Field(
        0,
        description="Most GPU memory of one worker, for all its models together; 0: 90 % of the "
        "memory that is free at startup, or with several workers an equal part of 90 % "
        "of what their CUDA contexts leave.",
    )
    threads: NonNegativeInt = Field(
        0,
        le=1024,
        description="CPU threads of each worker, at most four for each core; 0: the cores that the "
        "server may use, which a container's CPU limit lowers, divided by the workers.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log line that is written."
    )
    log_format: Literal["auto", "json", "text"] = Field(
        "auto",
        description="Format of all log lines; `auto`: text on a terminal, otherwise one JSON "
        "object for each line.",
    )
    access_log: bool = Field(
        False, description="Write a log line for every request, to standard output."
    )
    traces: Literal["off", "otlp"] = Field(
        "off",
        description="`otlp`: send traces and metrics of requests to an OpenTelemetry collector, "
        "which the standard variables `OTEL_…` describe; needs `sruserve[otel]`.",
    )

    max_batch_tokens: PositiveInt = Field(
        4096,
        description="Most tokens in one forward pass; fewer if they take more than 50 ms.",
    )
    max_queue_requests: PositiveInt = Field(
        1024, description="Requests that may wait, per model and worker, before more get 429."
    )
    max_queue_bytes: PositiveInt = Field(
        64 << 20,
        description="Bytes of request bodies that may wait, per model and worker; also of bodies "
        "that are still arriving, per worker, without 16 KiB of each connection.",
    )
    queue_timeout_ms: NonNegativeInt = Field(
        0,
        le=86_400_000,
        description="Longest wait of a request before its first step, then 504; 0: no limit.",
    )
    burst: NonNegativeInt = Field(
        0,
        le=1024,
        description="Most decode steps in a row before the scheduler looks at new requests; 0: 64 "
        "on a GPU, 16 on a CPU. On a GPU never more than take 12.5 ms, as far as is known.",
    )
    flush_ms: PositiveInt = Field(
        10, le=60_000, description="Shortest time between two events of one completion stream."
    )
    flush_max_ms: PositiveInt = Field(
        50, le=60_000, description="The longest that this time grows to when many streams are open."
    )
    max_grammar_bytes: PositiveInt = Field(
        512 << 20,
        description="Memory of the processes that compile and follow regular expressions and JSON "
        "schemas, together and per worker. Beyond it, requests with new ones, and with "
        "the largest, get 429.",
    )
    state_pool_bytes: PositiveInt = Field(
        256 << 20,
        description="Memory of the device for the states of streams, running or kept, per model "
        "and worker; of a translation system, for its beams. If it is not set, a GPU gives each "
        "model a quarter of what is left of `SRUSERVE_GPU_MEMORY_BYTES` once its weights are "
        "loaded, and at least the default.",
    )
    state_host_bytes: NonNegativeInt = Field(
        1 << 30,
        description="Host memory for the states of idle streams that do not fit into the pool, per "
        "model and worker, pinned on a GPU; allocated only when needed.",
    )

    max_body_bytes: PositiveInt = Field(
        8 << 20, le=_C_INT, description="Longest request body, otherwise 413."
    )
    max_input_bytes: PositiveInt = Field(
        1 << 20,
        description="Longest single text, in UTF-8 bytes; also the most token ids, or steps of "
        "features, of one input.",
    )
    max_inputs: PositiveInt = Field(
        1024, description="Most inputs in one request; for completions, prompts times `n`."
    )
    grpc_streams: PositiveInt = Field(
        64,
        le=_C_INT,
        description="`ModelStreamInfer` calls that may be open at a time in one worker. One "
        "tenant, or without API keys one connection, may have half of them; without API keys one "
        "address three quarters; a sole tenant all. "
        "Each may hold an unfinished message of `SRUSERVE_MAX_BODY_BYTES`.",
    )
    max_new_tokens: PositiveInt = Field(
        100_000,
        description="Most tokens that one request may ask for: `max_tokens` times its completions.",
    )
    max_state_token_bytes: PositiveInt = Field(
        1 << 20, description="Longest state token, in bytes."
    )

    tls_cert: Path | None = Field(
        None,
        description="File with the server's certificate in PEM, followed by its chain: HTTP, "
        "WebSockets and gRPC are then encrypted. SIGHUP renews it. Unset: no TLS.",
    )
    tls_key: Path | None = Field(
        None, description="File with the private key of `SRUSERVE_TLS_CERT` in PEM, not encrypted."
    )
    tls_client_ca: Path | None = Field(
        None,
        description="File with the certificates, in PEM, that sign those of clients. Clients must "
        "then present one; without it, HTTP answers only probes, and gRPC nothing.",
    )
    api_keys: SecretStr | None = Field(
        None,
        description="API keys that clients must send: `tenant:key`, separated by commas, or a JSON "
        "list as in `SRUSERVE_API_KEYS_FILE`. If this and the file are unset, every "
        "client may use the server.",
    )
    api_keys_file: Path | None = Field(
        None,
        description="File with a JSON list of `tenant`, `key` and, optionally, "
        "`requests_per_second`, `steps_per_second`, `state_bytes` (limits of one "
        "worker) and `priority`.",
    )
    state_keys: SecretStr | None = Field(
        None,
        description="Master keys of state tokens, 32 bytes each in base64 or hex, separated by "
        "commas: the first one seals, all of them open. Unset: a random key, so tokens end with "
        "the server.",
    )
    state_ttl_seconds: NonNegativeInt = Field(
        7 * 24 * 3600, le=_TEN_YEARS, description="How long a state token may be used; 0: for ever."
    )

    store: SecretStr | None = Field(
        None,
        description="Redis that stores server-held streams, so that every replica serves them "
        "and a restart loses none: `redis://…` or `rediss://…`; needs `SRUSERVE_STATE_KEYS`. "
        "Unset: the memory of a server with one worker.",
    )
    stream_idle_seconds: PositiveInt = Field(
        1800,
        le=_TEN_YEARS,
        description="How long a server-held stream lives without a step; clients may ask for less.",
    )
    stream_checkpoints: PositiveInt = Field(
        8, le=256, description="Number of last states that a server-held stream can be rewound to."
    )
    stream_bytes: PositiveInt = Field(
        256 << 20,
        description="Host memory of a worker for the data of its server-held streams besides their "
        "states: replies, states from tokens, and 1 KiB for each stream and each state. "
        "Each tenant of the API keys has a part of its own. With several tenants, also "
        "the assumed memory of a Redis that does not report its memory.",
    )
    tenant_stream_bytes: PositiveInt = Field(
        STREAM_BYTES,
        description="Most bytes that the server-held streams of one tenant may take with "
        "everything that belongs to them, unless its API key has `state_bytes`; without API keys, "
        "those of all clients. Of one worker, or in Redis.",
    )

    max_connections: PositiveInt = Field(
        4096,
        description="Most open HTTP and WebSocket connections of a worker, at most half of them "
        "from one address; fewer if the limit of open files is too low. Beyond it, the "
        "connection that has been idle longest is closed.",
    )
    max_grpc_connections: PositiveInt = Field(
        128,
        description="Most open gRPC connections of a worker; fewer if the limit of open files is "
        "too low. Beyond three quarters of it, the address with the most opens no more for ten "
        "seconds, and its newest ones are closed.",
    )
    receive_grace_seconds: float = Field(
        10.0,
        gt=0,
        description="Time that a request, or a message of a WebSocket or of gRPC, may always take.",
    )
    receive_bytes_per_second: PositiveInt = Field(
        16 << 10,
        description="Lowest rate at which its bytes must arrive after that, otherwise 408. Over "
        "gRPC, the longest message has that time, up to 30 s.",
    )
    allowed_origins: str | None = Field(
        None,
        description="Origins of web pages that may send requests and read replies (CORS), "
        "separated by commas, such as `https://app.example.com`; `*`: all. Unset: only pages of "
        "this server, at an IP address, `localhost` or `SRUSERVE_HOST`. Programs send no origin "
        "and are not affected.",
    )

    page: bool = Field(
        True,
        description="Browsers get a page at `/` on which people try the models; `off`: `/` is JSON "
        "for them too, as it is for programs.",
    )
    sse_ping_seconds: float = Field(
        15.0, gt=0, description="A silent event stream gets a comment line after this time."
    )
    keep_alive_seconds: PositiveInt = Field(
        75,
        le=_C_INT // 1000,
        description="How long a connection stays open while it is idle, or reads nothing of its "
        "reply.",
    )
    drain_seconds: NonNegativeInt = Field(
        20, le=86_400, description="After SIGTERM, how long running requests may take to finish."
    )

    @field_validator("grpc_port", mode="before")
    @classmethod
    def _off_is_none(cls, value: Any) -> Any:
        return None if value == "off" else value

    @field_validator("default_models")
    @classmethod
    def _defaults_are_names(cls, value: str) -> str:
        for name in read_names(value):
            if VERSION_MARK in name:
                raise ValueError(
                    f"should be names of models without a version: leave out "
                    f"{VERSION_MARK}{name.partition(VERSION_MARK)[2][:_MAX_SHOWN]}"
                )
        return value

    @field_validator("state_keys")
    @classmethod
    def _keys_are_keys(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            KeyRing.parse(value.get_secret_value())
        return value

    @field_validator("api_keys")
    @classmethod
    def _api_keys_are_keys(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            read_keys(value.get_secret_value(), None)
        return value

    @field_validator("api_keys_file")
    @classmethod
    def _file_holds_keys(cls, value: Path | None) -> Path | None:
        if value is not None:
            read_keys(None, value)
        return value

    @field_validator("store")
    @classmethod
    def _store_is_redis(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is None:
            return None
        if not value.get_secret_value().startswith(("redis://", "rediss://")):
            raise ValueError("should begin with redis:// or rediss://")
        if find_spec("redis") is None:
            raise ValueError("needs the extra 'redis': pip install 'sruserve[redis]'")
        from sruserve.server.redis_pool import redis_pool  # needs the extra `redis`

        redis_pool(value.get_secret_value())
        if "state_keys" in info.data and info.data["state_keys"] is None:
            raise ValueError(
                f"needs {variable_name('state_keys')}: its records are encrypted under keys that "
                "must be the same on every replica and after a restart"
            )
        return value

    @field_validator("traces")
    @classmethod
    def _traces_have_an_exporter(cls, value: str) -> str:
        if value != "off":
            try:
                import opentelemetry.exporter.otlp.proto.http
                import opentelemetry.sdk.trace  # noqa: F401
            except ImportError:
                raise ValueError("needs the extra 'otel': pip install 'sruserve[otel]'") from None
        return value

    @field_validator("allowed_origins")
    @classmethod
    def _origins_are_origins(cls, value: str | None) -> str | None:
        if value is not None:
            read_origins(value)
        return value

    @field_validator("device")
    @classmethod
    def _device_is_one(cls, value: str) -> str:
        if not _DEVICES.fullmatch(value):
            raise ValueError("should be auto, cpu, cuda or cuda:N")
        return value

    @field_validator("dtype", mode="before")
    @classmethod
    def _dtypes_are_dtypes(cls, value: Any) -> Any:
        dtypes = value.values() if isinstance(value, dict) else [value]
        if value is not None and not all(dtype in get_args(DType) for dtype in dtypes):
            raise ValueError(
                f"should be {' or '.join(get_args(DType))}, or a JSON object of these by model name"
            )
        return value

    @field_validator("threads")
    @classmethod
    def _cores_can_run_them(cls, value: int) -> int:
        limit = 4 * (os.cpu_count() or 1)
        if value > limit:
            raise ValueError(f"should be at most {limit}, four for each core")
        return value


def worker_threads(settings: Settings, system: SystemFiles = SYSTEM) -> int:
    """The CPU threads of each worker for the steps of its models."""
    return settings.threads or max(1, usable_cores(system) // settings.workers)


def read_names(listed: str) -> tuple[str, ...]:
    """The names in a list with commas between them, each once."""
    return tuple(dict.fromkeys(name for each in listed.split(",") if (name := each.strip())))


def dtypes_by_model(settings: Settings, models: Iterable[str]) -> dict[str, DType | None]:
    """The compute dtype of each of `models`; None: the one in its config.json.

    Raises `SettingsError` if SRUSERVE_DTYPE names a model that is not among them.
    """
    names, dtypes = list(models), settings.dtype
    unknown = [name for name in dtypes if name not in names] if isinstance(dtypes, dict) else []
    if unknown:
        raise SettingsError(
            f"{variable_name('dtype')} names {', '.join(unknown)}; served are {', '.join(names)}"
        )
    return {name: dtype_of(settings, name) for name in names}


def dtype_of(settings: Settings, model: str) -> DType | None:
    """The compute dtype of a model; None: the one in its config.json."""
    dtypes = settings.dtype
    return dtypes.get(model) if isinstance(dtypes, dict) else dtypes


def api_keys(settings: Settings) -> list[KeyEntry]:
    """The API keys of the setting and of the file; raises `SettingsError`."""
    listed = settings.api_keys
    try:
        return read_keys(listed.get_secret_value() if listed else None, settings.api_keys_file)
    except ValueError as error:
        raise SettingsError(f"{variable_name('api_keys')}: {error}") from None


def state_keys(settings: Settings) -> SecretStr:
    """The configured state keys, or a random one."""
    return settings.state_keys or SecretStr(KeyRing.random_key())


def key_ring(settings: Settings) -> KeyRing:
    """The keys that seal states and the records of the store."""
    return KeyRing.parse(state_keys(settings).get_secret_value())


def tls_files(settings: Settings) -> TlsFiles | None:
    """The files of TLS, or None if it is off; raises `SettingsError`."""
    certificate, key, client_ca = settings.tls_cert, settings.tls_key, settings.tls_client_ca
    if certificate is not None and key is not None:
        return TlsFiles(certificate, key, client_ca)
    for field in ("tls_cert", "tls_key"):
        if (certificate or key or client_ca) and getattr(settings, field) is None:
            raise SettingsError(
                f"{variable_name(field)} is not set: TLS needs a certificate and its key"
            )
    return None


def read_certificates(settings: Settings) -> Certificates | None:
    """The certificates of TLS, or None if it is off; raises `SettingsError`."""
    try:
        files = tls_files(settings)
        return None if files is None else Certificates(files)
    except UnfitCertificate as error:
        raise SettingsError(str(error)) from None


def load_settings(**values: Any) -> Settings:
    """Settings from the environment and from `values`, which win; raises `SettingsError`."""
    for variable in sorted(os.environ):
        name = variable.removeprefix(PREFIX).lower()
        if variable.startswith(PREFIX) and name in _FORMER_NAMES:
            _take_former(variable, _FORMER_NAMES[name], values)
            continue
        if variable.startswith(PREFIX) and name not in Settings.model_fields:
            close = difflib.get_close_matches(name, Settings.model_fields, n=1)
            hint = f"did you mean {variable_name(close[0])}?" if close else _ALL_SETTINGS
            raise SettingsError(f"{variable} is not a setting of sruserve; {hint}")
    try:
        settings = Settings(**values)
        read_certificates(settings)
        return settings
    except SettingsError:
        raise
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(problem) for problem in error.errors())) from None
    except RecursionError:
        lists = [name for name in map(variable_name, Settings.model_fields) if _is_json(name)]
        raise SettingsError(f"{' or '.join(lists)}: should be JSON of few levels") from None
    except ValueError as error:  # a variable that is not valid JSON
        named = next((name for name in Settings.model_fields if f'"{name}"' in str(error)), "")
        if not named:
            raise SettingsError(str(error)) from None
        variable = variable_name(named)
        raise SettingsError(f"{variable}={os.environ.get(variable)}: should be JSON") from None


def _take_former(variable: str, field: str, values: dict[str, Any]) -> None:
    """Set a setting from the variable of its former name."""
    if os.environ.get(variable_name(field)):
        raise SettingsError(f"{variable} is the former name of {variable_name(field)}: unset it")
    if os.environ[variable]:
        values.setdefault(field, os.environ[variable])


def _is_json(variable: str) -> bool:
    return os.environ.get(variable, "").lstrip()[:1] in ("[", "{")


def variable_name(field: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + field.upper()


def _explain(problem: Any) -> str:
    field = str(problem["loc"][0]) if problem["loc"] else ""
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if field in ("api_keys", "state_keys", "store"):
        return f"{variable_name(field)}: {message}"
    value = str(problem["input"])
    value = value if len(value) <= _MAX_SHOWN else f"{value[:_MAX_SHOWN]}…"
    if allowed := field in Settings.model_fields and allowed_setting(Settings.model_fields[field]):
        allowed += ", or off" if field == "grpc_port" else ""
        if problem["type"] not in ("value_error", "finite_number"):
            message = f"should be {allowed}"
    return f"{variable_name(field)}={value}: {message}"
