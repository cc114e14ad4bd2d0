"""Choose a worker's device, limit its GPU memory, and check that its models fit."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from sruserve.export.runtime.load import read_any_config
from sruserve.kernels import kernel_name
from sruserve.kernels.devices import (
    DeviceError,
    describe_device,
    memory_use,
    resolve_device,
    use_device,
    why_no_gpu,
)
from sruserve.kernels.dispatch import INTERPRETER
from sruserve.kernels.self_check import KernelMismatch, check_kernels
from sruserve.kernels.self_check_layers import check_other_layers
from sruserve.kernels.torch_members import is_untested, torch_warning
from sruserve.model.config import ModelConfig
from sruserve.model.errors import ModelError
from sruserve.model.folder import compute_dtype
from sruserve.model.names import DType
from sruserve.model.network import network_shapes
from sruserve.model.placement import preferred_device
from sruserve.model.translation.config import is_translation
from sruserve.model.versions import CONFIG_FILE, newest
from sruserve.server.settings import Settings, SettingsError, variable_name

log = logging.getLogger("sruserve.server")

_SHARE_OF_FREE = 0.9  # the rest is for other processes, and for what torch does not count
# Of a process, outside torch's limit: CUDA's context, loaded kernels and captured graphs.
_CONTEXT_BYTES = 768 << 20
_ADVICE = (
    f"raise {variable_name('gpu_memory_bytes')} if the GPU has more, lower "
    f"{variable_name('state_pool_bytes')}, set {variable_name('dtype')} to bfloat16, or serve "
    "fewer models or workers on this GPU"
)
_HOST_ADVICE = f"lower {variable_name('state_pool_bytes')}, or serve fewer models or workers"


class NoMemory(SettingsError):
    """A model does not fit into the memory that is left."""

    no_memory = True


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The device memory that a model needs before it serves a request, in bytes."""

    model: str
    weights: int
    states: int

    @property
    def total(self) -> int:
        return self.weights + self.states


def choose_device(name: str) -> torch.device:
    """The configured device, which is logged; raises `SettingsError`."""
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
    if device.type == "cpu" and (reason := torch_warning()):
        log.warning(reason)
    elif is_untested():
        log.info("torch %s is newer than sruserve was tested with", torch.__version__)
    if name == "auto" and device.type == "cpu" and torch.cuda.is_available():
        log.warning("the GPU is not used: %s", why_no_gpu())
    return device


def readable(paths: Iterable[Path]) -> list[Path]:
    """The model folders whose newest version has a config that can be read."""
    folders = []
    for path in paths:
        try:
            _ = is_translator(path) or read_any_config(path)
        except ModelError as error:
            log.error("%s", error)
        else:
            folders.append(path)
    return folders


def is_translator(folder: Path) -> bool:
    """Whether the newest version in a model's folder is a translation system.

    Raises `ConfigError`. What cannot be read is none; loading it says so.
    """
    try:
        _, path = newest(folder)
        return (path / CONFIG_FILE).is_file() and is_translation(path)
    except OSError:
        return False


def prepare_gpu(
    settings: Settings,
    paths: Sequence[Path],
    dtypes: Mapping[str, DType | None],
    device: torch.device,
) -> torch.device:
    """Check that the models fit on a GPU and that its kernels are correct; returns the device.

    If they are wrong, `auto` returns the CPU, and an explicit GPU raises `SettingsError`. Models
    that `auto` computes on the CPU in any case (`preferred_device`) do not count; if there is no
    other, it returns the CPU, too.
    """
    paths = [path for path in paths if not is_translator(path)]  # they compute on the CPU
    candidates, configs = paths, {path.name: read_any_config(path) for path in paths}
    paths = [
        path
        for path in candidates
        if preferred_device(configs[path.name], dtypes[path.name], settings.device, device)
        == device
    ]
    if candidates and not paths:
        log.warning("the GPU is not used: none has been measured to be faster at these layers")
        return torch.device("cpu")
    configs = {path.name: configs[path.name] for path in paths}
    check_gpu_memory(settings, paths, dtypes, device)
    compute_dtypes = {
        compute_dtype(config, dtypes[name], device) for name, config in configs.items()
    }
    try:
        for dtype in sorted(compute_dtypes, key=str):
            check_kernels(device, dtype)
            if any(config.rnn.other_kernels for config in configs.values()):
                check_other_layers(device, dtype)
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
    """Select the GPU for this thread, limit the process's memory on it, and check that models fit.

    Raises `SettingsError` with the setting to change, or a `ModelError` of a model's config.
    """
    try:
        use_device(device)
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError as error:  # it is full, or in exclusive use by another process
        reason = str(error).partition("\n")[0]
        raise SettingsError(f"{variable_name('device')}: cannot use {device}: {reason}") from error
    limit = worker_limit(settings.gpu_memory_bytes, free, total, settings.workers)
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
    needs = []
    for path in paths:
        config = read_any_config(path)
        dtype = compute_dtype(config, dtypes[path.name], device)
        needs.append(memory_need(path.name, config, dtype, settings.state_pool_bytes))
    check_fit(needs, limit)


def memory_need(
    model: str, config: ModelConfig, dtype: torch.dtype, pool_bytes: int
) -> MemoryEstimate:
    """The memory of a model that computes in `dtype` with a state pool of `pool_bytes`.

    Matrices are stored in `dtype`, all other tensors at most in float32.
    """
    weights = sum(
        prod(shape) * (dtype.itemsize if len(shape) == 2 else 4)
        for shape in network_shapes(config).values()
    )
    return MemoryEstimate(model, weights, pool_bytes)


def pool_bytes(settings: Settings, device: torch.device) -> int:
    """The bytes of a model's state pool, once its weights are loaded.

    The setting where it is set. Otherwise a GPU gives a quarter of what is left of this worker's
    limit if that is more: unreserved memory holds more streams.
    """
    setting = settings.state_pool_bytes
    if device.type != "cuda" or "state_pool_bytes" in settings.model_fields_set:
        return setting
    limit, _, in_use = memory_use(device)
    return max(setting, (limit - in_use) // 4)


def worker_limit(requested: int, free: int, total: int, workers: int) -> int:
    """The bytes that one of `workers` may use of a GPU with `free` of its `total` bytes unused.

    requested: the operator's SRUSERVE_GPU_MEMORY_BYTES. 0: 90% of the free bytes; for several
        workers, equal parts of 90% of what the contexts of all of them leave of the total, so that
        a restarted worker gets the same. The only worker's context is not free any more.
    Raises `SettingsError` if the workers together could use more than the total.
    """
    if not requested:
        left = free if workers == 1 else max(0, total - workers * _CONTEXT_BYTES)
        return int(left * _SHARE_OF_FREE) // workers
    if workers > 1 and (requested + _CONTEXT_BYTES) * workers > total:
        raise SettingsError(
            f"{variable_name('gpu_memory_bytes')}={requested} for each of {workers} workers, and "
            f"{_CONTEXT_BYTES} for the CUDA context of each, is more than the {total} bytes of the "
            f"GPU: lower it, or {variable_name('workers')}"
        )
    if requested > total:
        raise SettingsError(
            f"{variable_name('gpu_memory_bytes')}={requested} is more than the {total} bytes of "
            "the GPU: lower it"
        )
    return requested


def check_fit(needs: Iterable[MemoryEstimate], limit: int) -> None:
    """Raise `SettingsError` for the first model that exceeds the rest of `limit` bytes."""
    remaining = limit
    for need in needs:
        if need.total > remaining:
            raise NoMemory(
                f"{need.model} does not fit on the GPU: it needs {need.total} bytes "
                f"({need.weights} of weights, {need.states} of states) and {remaining} of this "
                f"worker's {limit} are left; {_ADVICE}"
            )
        remaining -= need.total


def out_of_memory(model: str, device: torch.device) -> NoMemory:
    """The error for a model that was expected to fit."""
    where, advice = ("GPU", _ADVICE) if device.type == "cuda" else ("host", _HOST_ADVICE)
    return NoMemory(
        f"the {where} ran out of memory while {model} was loaded and warmed up; {advice}"
    )
