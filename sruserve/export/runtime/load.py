"""Load a model: a folder for the compiled kernels, or ONNX files for ONNX Runtime."""

from importlib import import_module
from pathlib import Path

import torch

from sruserve.kernels.devices import CPU
from sruserve.model.config import ModelConfig, read_config
from sruserve.model.errors import FolderError
from sruserve.model.folder import Model, load_model
from sruserve.model.versions import CONFIG_FILE, ONNX_FILE, is_onnx, newest

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def load_any(
    path: Path,
    dtype: str | None = None,
    device: torch.device = CPU,
    fast: bool = False,
    allow_cpu: bool = False,
    threads: int = 0,
) -> Model:
    """Load a model folder, or the newest version in one, or an ONNX file of our own.

    allow_cpu: an ONNX file's graph may run on the CPU where the GPU cannot run it.
    threads: of ONNX Runtime; 0: one for each core.

    See `load_model`. Also raises `FolderError` if ONNX Runtime is not installed.
    """
    if not _is_onnx(path):
        return load_model(path, dtype, device, fast)
    _need_packages(path)
    from sruserve.export.runtime.model import load_onnx

    return load_onnx(path, dtype, device, allow_cpu, threads)


def read_any_config(folder: Path) -> ModelConfig:
    """Return the config of the newest version in a model's folder. Raises as `load_any`."""
    _, path = newest(folder)
    if not is_onnx(path):
        return read_config(path / CONFIG_FILE)
    _need_packages(path)
    from sruserve.export.runtime.file import read_onnx

    # Whatever the folder that was exported computed in, its graph computes in float32.
    return read_onnx(path / ONNX_FILE).config.model_copy(update={"dtype": "float32"})


def _is_onnx(path: Path) -> bool:
    try:
        if path.is_file():
            return path.suffix == ".onnx"
        return path.is_dir() and is_onnx(newest(path)[1])
    except PermissionError:  # the reader of model folders says so
        return False


def _need_packages(path: Path) -> None:
    """Raise `FolderError` if a package that runs ONNX files is not installed."""
    for package in _PACKAGES:
        try:
            import_module(package)
        except ModuleNotFoundError as error:
            if error.name != package:
                raise
            raise FolderError(
                f"{path} is an ONNX model, which needs {package}: pip install 'sruserve[onnx]'"
            ) from error
