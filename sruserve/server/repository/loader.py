"""Load a model's folder into a served model: start and warm its engine, compute its presets."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from sruserve.export.runtime.load import load_any, read_any_config
from sruserve.kernels.devices import CPU, use_device
from sruserve.kernels.oom import is_out_of_memory
from sruserve.model.errors import DTypeError, FolderError
from sruserve.model.folder import Model
from sruserve.model.folder_files import PRESETS_FILE
from sruserve.model.placement import WHY_CPU, preferred_device
from sruserve.model.translation.folder import load_translation
from sruserve.model.versions import versions
from sruserve.server.auth import Tenant
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.translation.engine import TranslationEngine
from sruserve.server.errors import StateTooLarge, faults
from sruserve.server.metrics.metrics import EngineMetrics
from sruserve.server.repository.device import is_translator, out_of_memory, pool_bytes
from sruserve.server.repository.presets import compute_presets
from sruserve.server.repository.served import Served
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.repository.served_translator import ServedTranslator
from sruserve.server.settings import (
    Settings,
    SettingsError,
    dtype_of,
    variable_name,
    worker_threads,
)
from sruserve.server.state.token import StateSealer

log = logging.getLogger("sruserve.server")


class Loader:
    """Loads models as the settings say, on one device, and serves them to a first tenant.

    clock: of the engines, in monotonic seconds.
    """

    def __init__(
        self,
        settings: Settings,
        device: torch.device,
        sealer: StateSealer,
        tenant: Tenant,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._device, self._clock = settings, device, clock
        self._sealer, self._tenant = sealer, tenant

    def load(
        self, folder: Path, version: str | None = None, existing: Sequence[Served] = ()
    ) -> Served:
        """Load a version in a folder, and make it ready; not for the event loop's thread.

        version: its number; None: the newest one.
        existing: the versions that are served now. If one has the same weights, the new one shares
            its engine, so that server-held streams continue.

        Raises `ModelError`, `SettingsError`, `ServeError` or `OSError`.
        """
        settings, device = self._settings, self._device
        use_device(device)
        path = _folder_of(folder, version)
        if is_translator(path):
            return self._load_translator(folder.name, path, version, existing)
        try:
            dtype = dtype_of(settings, folder.name)
            threads = engine_limits(settings).threads
            if settings.device == "auto" and device.type != "cpu":
                device = preferred_device(read_any_config(path), dtype, "auto", device)
            model = load_any(path, dtype, device, settings.fast, settings.onnx_allow_cpu, threads)
            model = replace(model, name=folder.name, version=version or model.version)
            if device != self._device:
                log.warning("%s: %s", model.name, WHY_CPU)
            elif model.network.device.type != device.type:  # only if the operator allows it
                log.warning("%s runs on the CPU: %s", model.name, model.network.kernel)
            for served in reversed(existing):
                if isinstance(served, ServedModel) and _same(model, served.model):
                    return self._reload(model, served)
            engine = self._start_engine(model)
        except faults() as error:
            if not is_out_of_memory(error.__cause__ or error):
                raise
            raise out_of_memory(folder.name, device) from error
        try:
            presets = compute_presets(ServedModel(model, engine, self._sealer, self._tenant))
        except BaseException:
            engine.stop(0)
            raise
        return ServedModel(model, engine, self._sealer, self._tenant, presets)

    def _load_translator(
        self, name: str, path: Path, version: str | None, existing: Sequence[Served]
    ) -> ServedTranslator:
        """Load a translation system; it computes on the CPU, in float32.

        Raises `DTypeError` if another dtype is set for it by its name.
        """
        dtype = dtype_of(self._settings, name)
        if dtype not in (None, "float32"):
            if isinstance(self._settings.dtype, dict):
                raise DTypeError(
                    f"{name} is a translation system, which computes in float32 alone: set "
                    f"{variable_name('dtype')} to float32 for it, not to {dtype}"
                )
            log.info("%s computes in float32, as every translation system does", name)
        try:
            model = load_translation(path)
            if (model.path / PRESETS_FILE).exists():
                raise SettingsError(
                    f"{model.path / PRESETS_FILE}: {name} has no states for presets, because it "
                    "translates: remove the file"
                )
            model = replace(model, name=name, version=version or model.version)
            for served in reversed(existing):
                if isinstance(served, ServedTranslator) and served.model.digest == model.digest:
                    model = replace(served.model, version=model.version, path=model.path)
                    return ServedTranslator(
                        model,
                        served.engine,
                        self._sealer,
                        self._tenant,
                        served.in_flight,
                        served.pool,
                        served.life,
                    )
            config = engine_limits(self._settings)
            metrics = EngineMetrics(name)
            engine = TranslationEngine(model, config, metrics, clock=self._clock)
            engine.start()
        except faults() as error:
            if not is_out_of_memory(error.__cause__ or error):
                raise
            raise out_of_memory(name, CPU) from error
        metrics.limits(config.max_queue_requests, engine.state_limits)
        return ServedTranslator(model, engine, self._sealer, self._tenant)

    def _reload(self, model: Model, now: ServedModel) -> ServedModel:
        """The served model with the version and presets that the folder has now."""
        model = replace(now.model, version=model.version, path=model.path)
        presets = compute_presets(ServedModel(model, now.engine, self._sealer, self._tenant))
        return ServedModel(
            model,
            now.engine,
            self._sealer,
            self._tenant,
            presets,
            now.in_flight,
            now.pool,
            life=now.life,
        )

    def _start_engine(self, model: Model) -> Engine:
        config = engine_config(self._settings, model)
        try:
            metrics = EngineMetrics(model.name)
            engine = Engine(model, config, metrics, clock=self._clock)
        except StateTooLarge as error:
            variable = variable_name("state_pool_bytes")
            raise SettingsError(error.message.replace("state_pool_bytes", variable)) from None
        engine.start()
        metrics.limits(config.max_queue_requests, engine.state_limits)
        return engine


def _folder_of(folder: Path, version: str | None) -> Path:
    """The model folder of a version; raises `FolderError`."""
    if version is None:
        return folder
    try:
        return versions(folder)[version]
    except KeyError:
        raise FolderError(f"{folder} has no version {version}; was its folder removed?") from None


def _same(model: Model, other: Model) -> bool:
    """Whether two models have the same weights, dtype, config and runtime."""
    same = ("digest", "dtype", "config", "graphs")
    return all(getattr(model, name) == getattr(other, name) for name in same)


def engine_config(settings: Settings, model: Model) -> EngineConfig:
    """The configuration of the engine of a model."""
    config, network = engine_limits(settings), model.network
    rows = config.max_batch_tokens
    return replace(
        config,
        state_pool_bytes=pool_bytes(settings, network.device),
        max_batch_tokens=rows
        if network.max_step_rows is None
        else min(rows, network.max_step_rows),
    )


def engine_limits(settings: Settings) -> EngineConfig:
    """The configuration of each engine of each worker, whatever its model."""
    return EngineConfig(
        max_batch_tokens=settings.max_batch_tokens,
        max_queue_requests=settings.max_queue_requests,
        max_queue_bytes=settings.max_queue_bytes,
        state_pool_bytes=settings.state_pool_bytes,
        state_host_bytes=settings.state_host_bytes,
        burst=settings.burst,
        flush_ms=settings.flush_ms,
        flush_max_ms=settings.flush_max_ms,
        threads=worker_threads(settings),
    )
