"""Compare the host memory that the settings allow the workers with the container's limit."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from sruserve.model.control_groups import SYSTEM, SystemFiles
from sruserve.model.files import MAX_TEXT_BYTES, read_regular
from sruserve.model.machine import GIB, memory_limit
from sruserve.model.versions import CONFIG_FILE, versions
from sruserve.server.settings import Settings, variable_name

_WORKER_BYTES = 1 * GIB  # for libraries, requests in progress and grammars
_WEIGHT_FILES = ("*.safetensors", "*.onnx")


class _Config(BaseModel):
    """What matters here of a `config.json`, whose own module needs torch: supervisors have none."""

    task: Any = None


def memory_warning(
    settings: Settings, folders: Iterable[Path], system: SystemFiles = SYSTEM
) -> str:
    """What to change if the models may need more memory than the limit; an empty string if not.

    folders: of the models. docs/deployment.md, "Memory", has the same sum.
    """
    limit, folders = memory_limit(system), tuple(folders)
    need = host_bytes(settings, folders)
    if limit is None or need <= limit:
        return ""
    caches = settings.workers * sum(map(_caches_states, _served(settings, folders)))
    spare = limit - (need - caches * settings.state_host_bytes)
    change = (
        f"{variable_name('state_host_bytes')}={spare // caches >> 20 << 20}"
        if spare >= 0 and caches
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
    models = 0
    for path in _served(settings, folders):
        models += settings.state_pool_bytes + settings.max_queue_bytes + _weight_bytes(path)
        if _caches_states(path):
            models += settings.state_host_bytes
    return settings.workers * (_WORKER_BYTES + settings.stream_bytes + models)


def _served(settings: Settings, folders: Iterable[Path]) -> list[Path]:
    """The folders of the models' versions that are served from the start, about."""
    newest = (list(versions(folder).values())[-settings.model_versions :] for folder in folders)
    return [path for paths in newest for path in paths]


def _caches_states(folder: Path) -> bool:
    """Whether states of a model wait in memory; those of a translation wait with its client."""
    try:
        content = read_regular(folder / CONFIG_FILE, MAX_TEXT_BYTES)
        return bool(_Config.model_validate_json(content).task != "translate")
    except (OSError, ValueError):
        return True  # an ONNX model, or a folder whose loading tells what is wrong with it


def _weight_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for name in _WEIGHT_FILES for file in folder.glob(name))
