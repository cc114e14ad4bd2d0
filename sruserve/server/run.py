"""Run the application under uvicorn: one process, or a supervisor with several workers."""

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from sruserve.model.machine import describe_machine
from sruserve.server.collector import paused_collector
from sruserve.server.ending import (
    CLOSE_SECONDS,
    EXIT_USAGE,
    FAILED,
    KILL_SECONDS,
    STOPPED,
    heeded,
    leave,
    leaving_at_once,
)
from sruserve.server.errors import faults
from sruserve.server.file_limits import files_refusal, files_warning
from sruserve.server.http.uvicorn_http import HttpProtocol
from sruserve.server.kernel_buffers import limit_buffers
from sruserve.server.kserve.grpc.port import hold_port, wants_grpc
from sruserve.server.logs.config import report_failure, set_up_logging
from sruserve.server.metrics.files import VARIABLE, EndedWorkers, MetricFolder, preallocate_files
from sruserve.server.pulse import Pulse, Watchdog
from sruserve.server.repository.discovery import find_models
from sruserve.server.repository.host_memory import memory_warning
from sruserve.server.settings import (
    Settings,
    SettingsError,
    dtypes_by_model,
    read_certificates,
    state_keys,
    variable_name,
    worker_threads,
)
from sruserve.server.supervision import RestartPolicy
from sruserve.server.supervisor import Supervisor
from sruserve.server.tls.certificates import Certificates
from sruserve.server.websocket.uvicorn_websocket import WebSocketProtocol

if TYPE_CHECKING:
    from sruserve.server.app import Application

log = logging.getLogger("sruserve.server")

# The event loop releases the interpreter at each system call, about a dozen for each reply. By
# default, a computing thread gives it back only after 5 ms.
_SWITCH_SECONDS = 0.002
_STDERR = 2  # the last descriptor of a standard stream
# The event loop accepts one connection of each socket in a turn, which may take milliseconds while
# others send long bodies.
_ACCEPTED_IN_A_TURN = 8


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or Ctrl-C, and return the process's exit code."""
    _open_standard_descriptors()
    set_up_logging(settings.log_level, settings.log_format)
    # Outside steps, such as at loading, OpenMP would have a thread for each core of the machine.
    os.environ.setdefault("OMP_NUM_THREADS", str(worker_threads(settings)))
    try:
        folders = find_models(settings)
        dtypes_by_model(settings, [path.name for path in folders])
        certificates = read_certificates(settings)
        has_grpc = wants_grpc(settings)
    except SettingsError as error:
        return _fail(str(error), EXIT_USAGE)
    files = settings.max_connections, settings.max_grpc_connections if has_grpc else 0
    if reason := files_refusal(*files):
        return _fail(reason, FAILED)
    # With several workers each checks for itself: the supervisor runs without torch.
    if settings.workers == 1 and (reason := _why_no_device(settings)):
        return _fail(reason, FAILED)
    try:
        listener = _bind(settings.host, settings.port)
    except (socket.gaierror, ValueError, TypeError):  # an unknown or invalid name
        return _fail(f"SRUSERVE_HOST={settings.host!r} is not an address or known name", EXIT_USAGE)
    except OSError as error:
        return _fail(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}; "
            "set another port by --port or SRUSERVE_PORT (0: a free one), or another address by "
            "--host or SRUSERVE_HOST",
            FAILED,
        )
    host, port = listener.getsockname()[:2]
    settings = settings.model_copy(update={"host": host})  # gRPC resolves names differently
    grpc_reservation = None
    try:
        if settings.grpc_port is not None and has_grpc:
            grpc_reservation = hold_port(settings.host, settings.grpc_port)
            grpc_port = grpc_reservation.getsockname()[1]
            settings = settings.model_copy(update={"grpc_port": grpc_port})
    except OSError as error:
        return _fail(
            f"cannot listen on {settings.host} port {settings.grpc_port} for gRPC: "
            f"{error.strerror}; set SRUSERVE_GRPC_PORT to another port, to 0 for a free one, or to "
            "off",
            FAILED,
        )
    if settings.grpc_port is not None and grpc_reservation is None:
        log.info("gRPC is not served: to serve it, pip install 'sruserve[grpc]'")
    if settings.state_keys is None:
        log.info("SRUSERVE_STATE_KEYS is not set: state tokens are valid until this server stops")
        # made before the workers start, which must have the same keys
        settings = settings.model_copy(update={"state_keys": state_keys(settings)})
    scheme = "http"
    if certificates is not None:
        scheme = "https"
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])  # until it can be heeded
        certificates.describe()
    log.info("threads for each worker: %d (%s)", worker_threads(settings), describe_machine())
    if warning := memory_warning(settings, folders):
        log.warning(warning)
    log.info("starting on %s://%s:%d", scheme, f"[{host}]" if ":" in host else host, port)
    if warning := files_warning(*files):
        log.warning(warning)
    with listener, grpc_reservation or nullcontext():
        if settings.workers > 1:
            return _run_workers(settings, listener, certificates)
        watchdog = Watchdog(settings.worker_timeout_seconds)
        return _run_one(settings, listener, watchdog.beat, certificates)


def uvicorn_config(
    settings: Settings, pulse: Pulse, certificates: Certificates | None = None
) -> uvicorn.Config:
    """uvicorn's configuration. The serving process makes the application and imports torch."""
    return uvicorn.Config(
        partial(_create_app, settings, pulse, certificates),
        factory=True,
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,  # `RequestLog` writes the lines of requests
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=CLOSE_SECONDS,
        **connections(settings),
    )


def connections(settings: Settings) -> dict[str, Any]:
    """uvicorn's options of connections."""
    http: type = HttpProtocol
    if settings.tls_cert is not None:
        from sruserve.server.http.tls_handshake import TlsHandshake  # with metrics and torch

        http = TlsHandshake
    return {
        "http": http,
        "ws": WebSocketProtocol,
        "ws_max_size": settings.max_body_bytes,
        "ws_per_message_deflate": False,  # a short message may decompress to many megabytes
        "timeout_keep_alive": settings.keep_alive_seconds,
    }


def _create_app(
    settings: Settings, pulse: Pulse, certificates: Certificates | None
) -> "Application":
    from sruserve.server.app import create_app

    return create_app(settings, pulse, certificates)


def _run_one(
    settings: Settings,
    listener: socket.socket,
    beat: Callable[[], None],
    certificates: Certificates | None,
) -> int:
    """Serve in this process, and call `beat` while its event loop runs."""
    if certificates is not None:  # also under `nohup`: renewing ends nothing
        signal.signal(signal.SIGHUP, certificates.on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
    elif heeded(signal.SIGHUP):
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    with leaving_at_once(), paused_collector():
        import sruserve.server.app  # noqa: F401  # torch takes seconds
    pulse = Pulse(settings.worker_timeout_seconds, beat)
    server = uvicorn.Server(uvicorn_config(settings, pulse, certificates))

    def stop(*_: object) -> None:
        # uvicorn raises the signal again after it has stopped, which needs no action
        if not server.started:
            leave()

    signal.signal(signal.SIGTERM, stop)
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        server.run(sockets=_accepting(listener, settings.workers))
    except KeyboardInterrupt:
        return STOPPED
    except SystemExit:  # the lifespan failed, which is logged
        return FAILED
    finally:  # uvicorn has restored Python's handlers, which would end the process by the signal
        for stopping in (signal.SIGINT, signal.SIGTERM):
            signal.signal(stopping, signal.SIG_IGN)
    return STOPPED if server.started and not pulse.failed else FAILED


def _accepting(listener: socket.socket, workers: int) -> list[socket.socket]:
    """The listener, as often as it may accept in a turn.

    Several workers accept one each: the first to wake would take all connections of a client.
    """
    more = _ACCEPTED_IN_A_TURN - 1 if workers == 1 else 0
    return [listener, *(listener.dup() for _ in range(more))]


def _run_workers(
    settings: Settings, listener: socket.socket, certificates: Certificates | None
) -> int:
    try:
        folder = MetricFolder.make()
    except OSError as error:
        return _fail(
            f"cannot make a folder for metrics: {error}; set TMPDIR to another folder", FAILED
        )
    os.environ[VARIABLE] = str(folder.path)
    supervisor = Supervisor(
        partial(_work, settings, listener, certificates),
        settings.workers,
        RestartPolicy(beat_seconds=settings.worker_timeout_seconds),
        settings.drain_seconds + KILL_SECONDS,
        EndedWorkers(folder.path),
        renew=None if certificates is None else certificates.renew,
    )
    try:
        return supervisor.run()
    finally:
        folder.leave()


def _work(
    settings: Settings,
    listener: socket.socket,
    certificates: Certificates | None,
    beat: Callable[[], None],
) -> int:
    """Run a worker process."""
    set_up_logging(settings.log_level, settings.log_format)
    if reason := _why_no_device(settings):
        return _fail(reason, FAILED)
    preallocate_files()
    folder = None
    try:
        folder = MetricFolder(Path(os.environ[VARIABLE]))
    except OSError as error:
        log.error("the folder of the workers' metrics was removed: %s; restart the server", error)
    try:
        return _run_one(settings, listener, beat, certificates)
    except faults():  # otherwise its traceback would be written as it is
        log.critical("the worker failed", exc_info=True)
        return FAILED
    finally:
        if folder is not None:
            folder.leave()


def _open_standard_descriptors() -> None:
    """Open /dev/null on each of the descriptors 0 to 2 that is closed.

    A socket or the event loop's own descriptor would take its number, and be read, written or
    closed by what expects a standard stream.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _why_no_device(settings: Settings) -> str:
    """Why the server cannot compute on the GPU of its settings; an empty string if it can."""
    if not settings.device.startswith("cuda"):
        return ""
    with leaving_at_once():
        from sruserve.kernels.devices import DeviceError, resolve_device  # imports torch

        try:
            resolve_device(settings.device)
        except DeviceError as error:
            return f"{variable_name('device')}: {error}"
    return ""


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket. It does not listen until the models are loaded, so no client can connect."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    limit_buffers(listener)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    listener.set_inheritable(True)
    return listener


def _fail(message: str, code: int) -> int:
    report_failure(message)
    return code
