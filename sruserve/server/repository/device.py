"""Where a worker computes, how much of a GPU's memory it may use, and whether its models fit."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from sruserve.kernels import kernel_name
from sruserve.kernels.devices import (
    DeviceError,
    describe_device,
    resolve_device,
    use_device,
    why_no_gpu,
)
from sruserve.kernels.dispatch import INTERPRETER
from sruserve.kernels.self_check import KernelMismatch, check_kernels
from sruserve.model.config import ModelConfig, read_config
from sruserve.model.folder import compute_dtype
from sruserve.model.names import DType
from sruserve.model.network import network_shapes
from sruserve.model.versions import CONFIG_FILE, newest
from sruserve.server.settings import Settings, SettingsError, variable_name

log = logging.getLogger("sruserve.server")

_SHARE_OF_FREE = 0.9  # the rest is for the driver, the kernels and whoever else is there
_ADVICE = (
    f"raise {variable_name('gpu_memory_bytes')} if the GPU has more, lower "
    f"{variable_name('state_pool_bytes')}, set {variable_name('dtype')} to bfloat16, or serve "
    "fewer models or workers on this GPU"
)
_HOST_ADVICE = f"lower {variable_name('state_pool_bytes')}, or serve fewer models or workers"


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What one model takes of the device before it serves anything, in bytes."""

    model: str
    weights: int
    states: int

    @property
    def total(self) -> int:
        return self.weights + self.states


def choose_device(name: str) -> torch.device:
    """The device that the operator asked for, told in the log, or `SettingsError`."""
    try:
        device = resolve_device(name)
    except DeviceError as error:
        raise SettingsError(f"{variable_name('device')}: {error}") from None
    log.info("computing on %s", describe_device(device))
    if kernel_name(device) == INTERPRETER:
        log.warning(
            "TRITON_INTERPRET is set, so kernels run in Triton's interpreter, thousands of times "
            "slower: unset it unless you test kernels"
        )
    if name == "auto" and device.type == "cpu" and torch.cuda.is_available():
        log.warning("there is a GPU, and it is not used: %s", why_no_gpu())
    return device


def prepare_gpu(
    settings: Settings,
    paths: Sequence[Path],
    dtypes: Mapping[str, DType | None],
    device: torch.device,
) -> torch.device:
    """See that the models fit on a GPU and that its kernels are right there; returns the device.

    Where they are wrong, `auto` means the CPU, and a GPU that was asked for is a `SettingsError`.
    """
    check_gpu_memory(settings, paths, dtypes, device)
    configs = {path.name: _config(path) for path in paths}
    wanted = {compute_dtype(config, dtypes[name], device) for name, config in configs.items()}
    try:
        for dtype in sorted(wanted, key=str):
            check_kernels(device, dtype)
    except torch.OutOfMemoryError as error:
        raise SettingsError(
            f"the GPU ran out of memory before a model was loaded; {_ADVICE}"
        ) from error
    except KernelMismatch as error:
        if settings.device != "auto":
            raise SettingsError(
                f"{variable_name('device')}={settings.device}: {error}, on "
                f"{describe_device(device)}; set it to cpu, and please report this"
            ) from error
        log.error("%s; serving on the CPU, please report this", error)
        return torch.device("cpu")
    return device


def check_gpu_memory(
    settings: Settings,
    paths: Sequence[Path],
    dtypes: Mapping[str, DType | None],
    device: torch.device,
) -> None:
    """Make the GPU this thread's, limit the process's memory on it, and check that models will fit.

    Raises `SettingsError` that says what to change, or a `ModelError` of a model's config.
    """
    try:
        use_device(device)
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError as error:  # it is full, or another process has it alone
        what = str(error).partition("\n")[0]
        raise SettingsError(f"{variable_name('device')}: cannot use {device}: {what}") from error
    limit = worker_limit(settings.gpu_memory_bytes, free, total, settings.workers)
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
    needs = []
    for path in paths:
        config = _config(path)
        dtype = compute_dtype(config, dtypes[path.name], device)
        needs.append(memory_need(path.name, config, dtype, settings.state_pool_bytes))
    check_fit(needs, limit)


def memory_need(
    model: str, config: ModelConfig, dtype: torch.dtype, pool_bytes: int
) -> MemoryEstimate:
    """The need of a model that computes in `dtype` with a state pool of `pool_bytes`.

    Matrices are held in `dtype`, everything else at most in float32.
    """
    weights = sum(
        prod(shape) * (dtype.itemsize if len(shape) == 2 else 4)
        for shape in network_shapes(config).values()
    )
    return MemoryEstimate(model, weights, pool_bytes)


def worker_limit(asked: int, free: int, total: int, workers: int) -> int:
    """The bytes that one of `workers` may use of a GPU with `free` of its `total` bytes left.

    asked: the operator's SRUSERVE_GPU_MEMORY_BYTES; 0 is nine tenths of what is free, or for
        several workers each its part of nine tenths of all, so that a new one gets the same.
    Raises `SettingsError` if the workers could ask for more than there is.
    """
    if not asked:
        return int((free if workers == 1 else total) * _SHARE_OF_FREE) // workers
    if asked * workers > total:
        of = f" for each of {workers} workers" if workers > 1 else ""
        raise SettingsError(
            f"{variable_name('gpu_memory_bytes')}={asked}{of} is more than the {total} bytes of "
            "the GPU: lower it" + (f", or {variable_name('workers')}" if workers > 1 else "")
        )
    return asked


def check_fit(needs: Iterable[MemoryEstimate], limit: int) -> None:
    """Raise `SettingsError` for the first model that no longer fits into `limit` bytes."""
    left = limit
    for need in needs:
        if need.total > left:
            raise SettingsError(
                f"{need.model} does not fit on the GPU: it needs {need.total} bytes "
                f"({need.weights} of weights, {need.states} of states) and {left} of this "
                f"worker's {limit} are left; {_ADVICE}"
            )
        left -= need.total


def _config(folder: Path) -> ModelConfig:
    """What is served first of a model's folder."""
    _, path = newest(folder)
    return read_config(path / CONFIG_FILE)


def out_of_memory(model: str, device: torch.device) -> SettingsError:
    """The error for a model that was expected to fit."""
    where, advice = ("GPU", _ADVICE) if device.type == "cuda" else ("host", _HOST_ADVICE)
    return SettingsError(
        f"the {where} ran out of memory while {model} was loaded and warmed up; {advice}"
    )
