"""Real servers of a test's models, in a thread of its process."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from sruserve.server.app import Application
from sruserve.server.clocks import SYSTEM_CLOCKS
from sruserve.server.pulse import Pulse
from sruserve.server.run import connections
from sruserve.server.settings import load_settings
from sruserve.server.streams.opening import create_streams
from sruserve.server.streams.redis.timing import RedisTiming
from sruserve.server.tasks.table import TABLE, Table
from sruserve.server.tuning import DEFAULT_TUNING, Tuning
from tests.server.hand_clock import HandClock
from tests.server.streams.redis.generous_timing import GENEROUS


@contextmanager
def serve_models(
    folders: Path,
    *names: str,
    clock: HandClock | None = None,
    timing: RedisTiming = GENEROUS,
    grpc_connections: int | None = None,
    pulse: Pulse | None = None,
    tuning: Tuning = DEFAULT_TUNING,
    table: Table = TABLE,
    **settings: Any,
) -> Iterator[tuple[httpx.Client, Application]]:
    """Serve models, and yield a client and the application.

    folders: the parent of the models' folders.
    names: the folders that are served.
    clock: stands still until the test moves it; None: the machine's.
    grpc_connections: the limit of open gRPC connections; None: as the descriptors allow.
    pulse: of the process; None: nothing looks after it.
    tuning: limits and waits that no setting has. table: the tasks.
    """
    chosen = tuple(folders / name for name in names)
    settings = {
        "state_pool_bytes": 1 << 20,
        "model_folders": chosen,
        "models": folders,
    } | settings
    clocks = SYSTEM_CLOCKS if clock is None else clock.clocks
    streams = partial(create_streams, timing=timing)
    application = Application(
        load_settings(**settings),
        pulse,
        clocks=clocks,
        make_streams=streams,
        tuning=tuning,
        table=table,
    )
    application.metrics.seconds = 0.0  # tests read what they have just done
    application.constraints.timeout_seconds = 60.0  # on a busy machine
    application.constraints.stall_seconds = 60.0
    if grpc_connections is not None:
        application.grpc_connections = grpc_connections
    config = uvicorn.Config(
        application, port=0, loop="uvloop", log_config=None, timeout_graceful_shutdown=2,
        access_log=False, **connections(application.settings),
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="server")
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        assert server.started, "the server did not start"
        port = server.servers[0].sockets[0].getsockname()[1]
        scheme = "http" if application.certificates is None else "https"
        url = f"{scheme}://127.0.0.1:{port}"
        thread.name = url  # so that a test finds it
        # to read the certificates that nobody asks for here takes longer than most tests
        with httpx.Client(base_url=url, timeout=60, verify=False) as client:
            yield client, application
    finally:
        server.should_exit = True
        thread.join(60)
