"""The lifecycle of a process, from loading its models to draining them, with its readiness."""

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from sruserve import __version__
from sruserve.kernels import kernel_name
from sruserve.kernels.devices import CPU, memory_use
from sruserve.server.auth import Tenants
from sruserve.server.clocks import SYSTEM_CLOCKS, Clocks
from sruserve.server.ending import FORCE_SECONDS, LAST_WORDS_SECONDS, end_after, leaving_at_once
from sruserve.server.errors import faults
from sruserve.server.metrics.files import VARIABLE
from sruserve.server.metrics.metrics import describe_build, gpu_memory
from sruserve.server.offload import run_in_thread
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.repository.device import choose_device, prepare_gpu, readable
from sruserve.server.repository.loader import Loader
from sruserve.server.repository.repository import Repository
from sruserve.server.settings import (
    Settings,
    api_keys,
    dtype_of,
    dtypes_by_model,
    key_ring,
)
from sruserve.server.state.token import StateSealer
from sruserve.server.tuning import DEFAULT_TUNING, Tuning

log = logging.getLogger("sruserve.server")


def _shared_folder(settings: Settings) -> Path | None:
    """The folder through which several workers agree on their models."""
    folder = os.environ.get(VARIABLE)
    return Path(folder, "models") if folder and settings.workers > 1 else None


class Answering:
    """Counts the requests that are being answered, each in a `with` block."""

    count = 0

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1


class Lifecycle:
    """Starts the models, and drains them before the process ends.

    answering: counts the requests that are being answered, for which a stop waits shortly.
    on_drain: called when a drain begins.
    """

    def __init__(
        self,
        settings: Settings,
        clocks: Clocks = SYSTEM_CLOCKS,
        tuning: Tuning = DEFAULT_TUNING,
    ) -> None:
        shared = _shared_folder(settings)
        self.repository = Repository(settings, clocks, shared, tuning.unload_seconds)
        self._clocks = clocks
        self.tenants = Tenants(api_keys(settings), settings.tenant_stream_bytes, clocks.monotonic)
        self.started_at = int(time.time())
        self.ready = False
        self.draining = False
        self.answering = Answering()
        self.on_drain: list[Callable[[], None]] = []
        self._settings = settings
        self._drain: asyncio.Task[None] | None = None
        self._stopping_now = False
        self._device = CPU

    @property
    def catalogue(self) -> Catalogue:
        """The served models."""
        return self.repository.catalogue

    @property
    def max_versions(self) -> int:
        """The most versions of one model that are served at once."""
        return self._settings.model_versions

    @property
    def alive(self) -> bool:
        """Whether no engine has failed."""
        return all(served.engine.alive for served in self.catalogue.every())

    @property
    def active(self) -> int:
        """Requests on hot routes that are being answered, and open sockets."""
        return self.answering.count

    async def start(self) -> None:
        """Load all models and warm their engines; ready when this returns."""
        begin = time.perf_counter()
        paths = self.repository.folders()
        names = [path.name for path in paths]
        if self.repository.joins:  # a model of SRUSERVE_DTYPE may have been removed meanwhile
            dtypes = {name: dtype_of(self._settings, name) for name in names}
        else:
            dtypes = dtypes_by_model(self._settings, names)
        sealer = StateSealer(
            key_ring(self._settings),
            self._settings.state_ttl_seconds,
            self._settings.max_state_token_bytes,
            self._clocks.epoch,
        )
        with leaving_at_once():
            device = choose_device(self._settings.device)
            if device.type == "cuda":
                checked = readable(paths) if self.repository.joins else paths
                prepare = partial(prepare_gpu, self._settings, checked, dtypes, device)
                device = await run_in_thread("GPU", prepare)
            loader = Loader(
                self._settings, device, sealer, self.tenants.anonymous, self._clocks.monotonic
            )
            await self.repository.open(loader, paths)
        describe_build(__version__, kernel_name(device))
        gpu_memory()
        self._device = device
        if threading.current_thread() is threading.main_thread():
            self._own_process(asyncio.get_running_loop())
        self.ready = True
        seconds = time.perf_counter() - begin
        log.info("ready to serve %s (loaded in %.1f s)", ", ".join(self.catalogue), seconds)

    def report_memory(self) -> None:
        """Export the GPU memory of this process; on a CPU it stays zero."""
        if self._device.type == "cuda":
            with suppress(RuntimeError):  # the device is lost, which its engines notice
                gpu_memory(*memory_use(self._device))

    async def load(self, name: str) -> None:
        """See `Repository.load`."""
        await self.repository.load(name)

    async def unload(self, name: str) -> None:
        """See `Repository.unload`."""
        await self.repository.unload(name)

    async def stop(self) -> None:
        """Stop the engines; running requests end with `Draining`."""
        self.draining = True
        await self.repository.stop(0)

    def _own_process(self, loop: asyncio.AbstractEventLoop) -> None:
        """Freeze the objects of a serving process, and drain before it obeys signals."""
        # The garbage collector never needs to visit the loaded models again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 50, 100)  # requests leave no cycles
        for number in (signal.SIGTERM, signal.SIGINT):
            handler = signal.getsignal(number)
            if callable(handler):
                signal.signal(number, partial(self._on_signal, loop, handler))
        supervisor = multiprocessing.parent_process()
        if supervisor is not None:  # nothing else would stop a worker whose supervisor has ended
            loop.add_reader(supervisor.sentinel, self._on_orphaned, loop, supervisor.sentinel)

    def _on_orphaned(self, loop: asyncio.AbstractEventLoop, sentinel: int) -> None:
        loop.remove_reader(sentinel)
        log.error("the supervisor has ended: this worker stops, too")
        signal.raise_signal(signal.SIGTERM)

    def _on_signal(
        self,
        loop: asyncio.AbstractEventLoop,
        handler: Callable[[int, FrameType | None], Any],
        number: int,
        frame: FrameType | None,
    ) -> None:
        if not self.draining:
            self.draining = True
            loop.call_soon_threadsafe(self._begin_drain, lambda: handler(number, None))
            end_after(self._settings.drain_seconds + FORCE_SECONDS)
        elif number == signal.SIGINT and not self._stopping_now:  # a second Ctrl-C stops the drain
            self._stopping_now = True
            loop.call_soon_threadsafe(self.repository.stop_now)
        elif number == signal.SIGINT:
            handler(number, frame)

    def _begin_drain(self, stop: Callable[[], Any]) -> None:
        self._drain = asyncio.get_running_loop().create_task(self._drain_then(stop))

    async def _drain_then(self, stop: Callable[[], Any]) -> None:
        """Finish running requests within SRUSERVE_DRAIN_SECONDS, then call `stop`."""
        log.info("stopping; running requests: %d", self.active)
        try:
            for callback in self.on_drain:
                callback()
            await self.repository.stop(self._settings.drain_seconds)
            deadline = time.monotonic() + LAST_WORDS_SECONDS
            while self.active and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
        except faults():
            log.exception("draining failed: stopping at once")
        finally:
            stop()
