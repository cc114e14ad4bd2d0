"""Read the tensors of a checkpoint file without ever running what it says."""

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
_DIMENSIONS = 8  # of a tensor: no network of ours has more than 2
_DEPTH = 4  # DrQA has two: {"state_dict": {"network": …}}

_HOW_TO_SAVE = (
    "Where you trust it, two lines of Python make a state dict of it beside the code that wrote "
    "it: saved = torch.load({path!r}, map_location='cpu', weights_only=False); "
    "torch.save(saved.state_dict(), 'weights.pt') - or saved[0].state_dict() of a list that begins "
    "with the model, as awd-lstm-lm writes; then import weights.pt"
)


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The state dict in a `.pt` or `.safetensors` file.

    What wraps it (`{"state_dict": …}`, DrQA's `{"state_dict": {"network": …}}`) and the `module.`
    of DataParallel are taken off. Raises `CheckpointError` for anything that is not plain tensors.
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
            f"{path} holds more than plain tensors, or is no checkpoint, and is not unpickled: "
            f"that could run code. {_HOW_TO_SAVE.format(path=str(path))}"
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
        raise CheckpointError(f"{path}: {_some(odd)}: not a tensor, so no state dict")
    odd = [name for name, tensor in loaded.items() if not _is_plain(tensor)]
    if odd:
        raise CheckpointError(
            f"{path}: {_some(odd)}: sparse, quantized, nested, expanded, without data or of more "
            f"than {_DIMENSIONS} dimensions; save ordinary dense tensors"
        )
    tensors = {str(name): tensor.detach() for name, tensor in loaded.items()}
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): t for name, t in tensors.items()}
    return tensors


def _check_archive(path: Path, file: BinaryIO) -> None:
    """Raise `CheckpointError` for an archive of more than the file's bytes.

    torch.save compresses nothing, but torch.load would unpack what is: a thousand times as much.
    """
    try:
        with ZipFile(file) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        size = file.seek(0, SEEK_END)
    except (OSError, ValueError, BadZipFile):  # what torch.load says of it is better
        return
    if unpacked > size:
        raise CheckpointError(
            f"{path} holds {unpacked:,} bytes in a file of {size:,}: it was not written by "
            "torch.save; unpack it, and save its tensors again"
        )


def _wrapped(loaded: Any) -> Any:
    """What a dict around the state dict holds, or None where it is the state dict."""
    if not isinstance(loaded, dict):
        return None
    return next((loaded[key] for key in _WRAPPERS if isinstance(loaded.get(key), dict)), None)


def _some(names: list[Any]) -> str:
    return ", ".join(name[:79] + "…" if len(name) > 80 else name for name in map(str, names[:5]))


def _is_plain(tensor: Tensor) -> bool:
    """Whether every number of it is in the file: one that is expanded can be of any size."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return False
    if tensor.is_quantized or tensor.is_meta or tensor.dim() > _DIMENSIONS:
        return False
    return tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()
