"""Run the application under uvicorn: one process, or a supervisor with several workers."""

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import nullcontext
from functools import partial
from logging.config import dictConfig
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from sruserve.server.discovery import find_models
from sruserve.server.grpc_port import hold_port, wants_grpc
from sruserve.server.logs import log_config
from sruserve.server.protocol import Protocol
from sruserve.server.settings import Settings, SettingsError, dtypes_by_model, master_keys
from sruserve.server.websocket_protocol import WebSocketProtocol

if TYPE_CHECKING:
    from sruserve.server.app import Application

log = logging.getLogger("sruserve.server")

STOPPED, FAILED, MISUSED = 0, 1, 2
# What is left to uvicorn after our own draining: connections whose clients do not read.
_CLOSE_SECONDS = 2


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or Ctrl-C, and return the process's exit code."""
    dictConfig(log_config(settings.log_level))
    # OpenMP's threads wait by spinning; on cores that HTTP needs too, a step would wait for them.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        dtypes_by_model(settings, [path.name for path in find_models(settings)])
        listener = _bind(settings.host, settings.port)
    except SettingsError as error:
        return _fail(str(error), MISUSED)
    except (socket.gaierror, UnicodeError, ValueError):
        return _fail(f"SRUSERVE_HOST={settings.host!r} is not an address or known name", MISUSED)
    except OSError as error:
        return _fail(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}; set "
            "SRUSERVE_HOST or SRUSERVE_PORT",
            FAILED,
        )
    grpc_holder = None
    try:
        if settings.grpc_port is not None and wants_grpc(settings):
            grpc_holder = hold_port(settings.host, settings.grpc_port)
            port = grpc_holder.getsockname()[1]
            settings = settings.model_copy(update={"grpc_port": port})
    except SettingsError as error:
        return _fail(str(error), MISUSED)
    except OSError as error:
        return _fail(
            f"cannot listen on {settings.host} port {settings.grpc_port} for gRPC: "
            f"{error.strerror}; set SRUSERVE_GRPC_PORT to another port, or to off",
            FAILED,
        )
    if settings.grpc_port is not None and grpc_holder is None:
        log.info("gRPC is not served: pip install 'sruserve[grpc]' brings what it needs")
    if settings.state_keys is None:
        log.info("SRUSERVE_STATE_KEYS is not set: returned states end with this server")
        # made here, not in the workers: all of them must have the same
        settings = settings.model_copy(update={"state_keys": master_keys(settings)})
    host, port = listener.getsockname()[:2]
    log.info("starting on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    with listener, grpc_holder or nullcontext():
        run = _run_one if settings.workers == 1 else _run_workers
        return run(settings, listener)


def uvicorn_config(settings: Settings) -> uvicorn.Config:
    """How uvicorn serves us. The application is made, and torch imported, where it runs."""
    return uvicorn.Config(
        partial(_create_app, settings),
        factory=True,
        workers=settings.workers,
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        lifespan="on",
        log_config=log_config(settings.log_level),
        access_log=settings.access_log,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
        **connections(settings),
    )


def connections(settings: Settings) -> dict[str, Any]:
    """How uvicorn speaks with clients."""
    return {
        "http": Protocol,
        "ws": WebSocketProtocol,
        "ws_max_size": settings.max_body_bytes,
        "ws_per_message_deflate": False,  # a short message may be one of many megabytes
        "timeout_keep_alive": settings.keep_alive_seconds,
    }


def _create_app(settings: Settings) -> "Application":
    from sruserve.server.app import create_app

    return create_app(settings)


def _run_one(settings: Settings, listener: socket.socket) -> int:
    # uvicorn raises the signal again after it has stopped: then it has been obeyed already
    signal.signal(signal.SIGTERM, lambda *_: None)
    server = uvicorn.Server(uvicorn_config(settings))
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        return STOPPED
    except SystemExit:  # the lifespan failed, and its one line has been logged
        return FAILED
    return STOPPED if server.started else FAILED


def _run_workers(settings: Settings, listener: socket.socket) -> int:
    folder = tempfile.mkdtemp(prefix="sruserve-metrics-")
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # read by the workers when they import
    workers = _Workers(uvicorn_config(settings), [listener])
    try:
        workers.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    failed = any(process.exitcode == STARTUP_FAILURE for process in workers.processes)
    return FAILED if failed else STOPPED


class _Workers(Multiprocess):
    """uvicorn's supervisor, but a worker is replaced only when it has ended.

    uvicorn also asks each worker for a sign of life, and waits for it with everything else, signals
    too; a worker that imports torch on a busy machine is slow to answer, and one that fails then
    never does.
    """

    def keep_subprocess_alive(self) -> None:
        for index, worker in enumerate(self.processes):
            if self.should_exit.is_set() or worker.process.is_alive():
                continue
            worker.join()
            if worker.exitcode == STARTUP_FAILURE:  # it would fail again
                self.should_exit.set()
                return
            log.error(
                "worker %s ended with exit code %s: replacing it", worker.pid, worker.exitcode
            )
            _forget(worker.pid)
            self.processes[index] = Process(self.config, self.sockets)
            self.processes[index].start()


def _forget(pid: int | None) -> None:
    from sruserve.server.metrics import forget_process

    if pid is not None:
        forget_process(pid)


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: before the models are loaded nobody is let in."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    listener.set_inheritable(True)
    return listener


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
