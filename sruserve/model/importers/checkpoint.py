"""Read the tensors of a checkpoint file without executing code in it."""

from os import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile, ZipFile

import torch
from safetensors import SafetensorError
from torch import Tensor

from sruserve.model.errors import CheckpointError
from sruserve.model.files import memory_bytes, open_regular
from sruserve.model.weights import read_tensors

_WRAPPERS = ("state_dict", "model_state_dict", "model", "network")
_DIMENSIONS = 8  # limit on a tensor's dimensions; no supported network has more than 2
_DEPTH = 4  # DrQA has two: {"state_dict": {"network": …}}

_HOW_TO_SAVE = (
    "If you trust it, convert it to a state dict in two lines of Python, with the code that wrote "
    "it on the path: saved = torch.load({path!r}, map_location='cpu', weights_only=False); "
    "torch.save(saved.state_dict(), 'weights.pt') - or saved[0].state_dict() for a list that "
    "starts with the model, as awd-lstm-lm writes; then import weights.pt"
)


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Read the state dict in a `.pt` or `.safetensors` file.

    Removes wrappers (`{"state_dict": …}`, DrQA's `{"state_dict": {"network": …}}`) and the
    `module.` of DataParallel.

    Raises `CheckpointError` for anything other than plain tensors.
    """
    if path.suffix == ".safetensors":
        try:
            return read_tensors(path)[0]
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read {path}: {error}") from error
    try:
        with open_regular(path, memory_bytes()) as file:
            _check_archive(path, file)
            file.seek(0)
            loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # a damaged pickle can raise anything
        raise CheckpointError(
            f"{path} holds more than plain tensors, or is not a checkpoint. It is not unpickled, "
            f"because that could run code. {_HOW_TO_SAVE.format(path=str(path))}"
        ) from error
    for _ in range(_DEPTH):
        inner = _wrapped(loaded)
        if inner is None:
            break
        loaded = inner
    if not isinstance(loaded, dict) or not loaded:
        raise CheckpointError(f"{path} holds {type(loaded).__name__}, not a state dict")
    odd = [name for name, value in loaded.items() if not isinstance(value, Tensor)]
    if odd:
        raise CheckpointError(
            f"{path} is not a state dict: {_some(odd)} is not a tensor; save model.state_dict()"
        )
    odd = [name for name, tensor in loaded.items() if not _is_plain(tensor)]
    if odd:
        raise CheckpointError(
            f"{path}: {_some(odd)} is sparse, quantized, nested, expanded, without data or has "
            f"more than {_DIMENSIONS} dimensions; save ordinary dense tensors"
        )
    tensors = {str(name): tensor.detach() for name, tensor in loaded.items()}
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): t for name, t in tensors.items()}
    return tensors


def _check_archive(path: Path, file: BinaryIO) -> None:
    """Raise `CheckpointError` if the archive's contents are larger than the file.

    torch.save does not compress, but torch.load unpacks compressed entries, which may be a thousand
    times larger.
    """
    try:
        with ZipFile(file) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        size = file.seek(0, SEEK_END)
    except (OSError, ValueError, BadZipFile):  # torch.load has the better message
        return
    if unpacked > size:
        raise CheckpointError(
            f"{path} holds {unpacked:,} bytes in a file of {size:,} bytes, so torch.save did not "
            "write it; unpack it and save its tensors with torch.save"
        )


def _wrapped(loaded: Any) -> Any:
    """Return the dict inside a wrapper, or None if `loaded` is no wrapper."""
    if not isinstance(loaded, dict):
        return None
    return next((loaded[key] for key in _WRAPPERS if isinstance(loaded.get(key), dict)), None)


def _some(names: list[Any]) -> str:
    return ", ".join(name[:79] + "…" if len(name) > 80 else name for name in map(str, names[:5]))


def _is_plain(tensor: Tensor) -> bool:
    """Whether the file holds every number of a tensor; an expanded one can have any size."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return False
    if tensor.is_quantized or tensor.is_meta or tensor.dim() > _DIMENSIONS:
        return False
    return tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()
