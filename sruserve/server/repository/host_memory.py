"""Compare the host memory that the settings allow the workers with the container's limit."""

from collections.abc import Iterable
from pathlib import Path

from sruserve.model.machine import GIB, memory_limit
from sruserve.model.versions import versions
from sruserve.server.settings import Settings, variable_name

_WORKER_BYTES = 1 * GIB  # for libraries, requests in progress and grammars
_WEIGHT_FILES = ("*.safetensors", "*.onnx")


def memory_warning(settings: Settings, folders: Iterable[Path]) -> str:
    """What to change if the models may need more memory than the limit; an empty string if not.

    folders: of the models. docs/deployment.md, "Memory", has the same sum.
    """
    limit, folders = memory_limit(), tuple(folders)
    need = host_bytes(settings, folders)
    if limit is None or need <= limit:
        return ""
    engines = settings.workers * sum(len(_served(settings, folder)) for folder in folders)
    spare = limit - (need - engines * settings.state_host_bytes)
    host_bytes_that_fit = max(0, spare) // engines >> 20 << 20
    change = (
        f"{variable_name('state_host_bytes')}={host_bytes_that_fit}"
        if spare >= 0
        else f"{variable_name('state_host_bytes')}=0 and a lower {variable_name('workers')}, "
        f"{variable_name('state_pool_bytes')}, {variable_name('stream_bytes')} or "
        f"{variable_name('max_queue_bytes')}"
    )
    return (
        f"under load the server may need {need / GIB:.1f} GiB, but its memory limit is "
        f"{limit / GIB:.1f} GiB, at which the kernel kills it: raise the limit, or set {change}"
    )


def host_bytes(settings: Settings, folders: Iterable[Path]) -> int:
    """The most memory that all workers together need under load, about, if they run on a CPU."""
    for_a_version = settings.state_pool_bytes + settings.state_host_bytes + settings.max_queue_bytes
    served = [path for folder in folders for path in _served(settings, folder)]
    models = sum(for_a_version + _weight_bytes(path) for path in served)
    return settings.workers * (_WORKER_BYTES + settings.stream_bytes + models)


def _served(settings: Settings, folder: Path) -> list[Path]:
    """The folders of a model's versions that are served from the start, about."""
    return list(versions(folder).values())[-settings.model_versions :]


def _weight_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for name in _WEIGHT_FILES for file in folder.glob(name))
