"""Read the tensors of a checkpoint file without ever running what it says."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sruserve.model.errors import CheckpointError

_WRAPPERS = ("state_dict", "model_state_dict", "model")


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The state dict in a `.pt` or `.safetensors` file.

    A dict that wraps it (`{"state_dict": …}`) and the `module.` of DataParallel are taken off.
    Raises `CheckpointError` for anything that is not plain tensors.
    """
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read {path}: {error}") from error
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # a damaged pickle can raise anything
        raise CheckpointError(
            f"{path} holds more than plain tensors, or is no checkpoint, and is not unpickled: "
            "that could run code. Save model.state_dict() where you trust the file, then import it"
        ) from error
    for key in _WRAPPERS:
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not loaded:
        raise CheckpointError(f"{path} holds {type(loaded).__name__}, not a state dict")
    odd = [str(name) for name, value in loaded.items() if not isinstance(value, Tensor)]
    if odd:
        raise CheckpointError(f"{path}: {', '.join(odd[:5])}: not a tensor, so no state dict")
    odd = [str(name) for name, tensor in loaded.items() if not _is_plain(tensor)]
    if odd:
        raise CheckpointError(
            f"{path}: {', '.join(odd[:5])}: sparse, quantized, nested or without data; save "
            "ordinary dense tensors"
        )
    tensors = {str(name): tensor.detach() for name, tensor in loaded.items()}
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): t for name, t in tensors.items()}
    return tensors


def _is_plain(tensor: Tensor) -> bool:
    dense = tensor.layout is torch.strided and not tensor.is_nested
    return dense and not tensor.is_quantized and not tensor.is_meta
