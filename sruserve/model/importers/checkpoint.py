"""Read the tensors of a checkpoint file without executing code in it."""

import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import torch
from safetensors import SafetensorError
from torch import Tensor

from sruserve.model.errors import CheckpointError
from sruserve.model.files import memory_bytes, open_regular
from sruserve.model.importers.attribute_bags import BAGS, plain
from sruserve.model.importers.foreign import foreign_archive, foreign_file
from sruserve.model.importers.names import renamed
from sruserve.model.importers.options import shown
from sruserve.model.importers.pickled import PickleRefused, PickleScan
from sruserve.model.weights import read_tensors

_WRAPPERS = ("state_dict", "model_state_dict", "model", "network", "net", "module")
_LONGEST_NAME = 1024  # characters
_DIMENSIONS = 8  # limit on a tensor's dimensions; no supported network has more than 2
_MAX_SHARES = 4  # of the bytes in a file by its tensors
_SMALL_BYTES = 64 << 20  # which any tensors may have
_ARCHIVE = b"PK\x03\x04"
_HEADERS = 3  # pickles before the state dict in a file of PyTorch before 1.6
_DEPTH = 4  # DrQA has two: {"state_dict": {"network": …}}

_HOW_TO_SAVE = (
    "If you trust it, convert it to a state dict in two lines of Python, with the code that wrote "
    "it on the path: saved = torch.load({path!r}, map_location='cpu', weights_only=False); "
    "torch.save(saved.state_dict(), 'weights.pt') - or saved[0].state_dict() for a list that "
    "starts with the model, as awd-lstm-lm writes, or saved['state_dict'] for a checkpoint of "
    "Lightning; then import weights.pt"
)


def read_checkpoint(path: Path, renames: Sequence[str] = ()) -> dict[str, Tensor]:
    """Read the state dict in a `.pt` or `.safetensors` file.

    Removes wrappers: `{"state_dict": …}`, DrQA's `{"state_dict": {"network": …}}`, and any other
    dict with one state dict in it; then prefixes that all names share.

    renames: OLD=NEW, names or prefixes.

    Raises `CheckpointError` for anything other than plain tensors. Raises `OptionError` for a
    rename that does not fit them.
    """
    try:
        if path.suffix == ".safetensors":
            tensors = read_tensors(path)[0]
        else:
            with open_regular(path, memory_bytes()) as file:
                tensors = _tensors(path, _load(path, file))
    except OSError as error:
        folder = "it is a folder; name the file of the weights" if os.path.isdir(path) else None
        reason = folder or error.strerror
        raise CheckpointError(f"cannot read {path}: {reason or error}") from error
    except SafetensorError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not tensors:
        raise CheckpointError(f"{path} holds no tensors; save model.state_dict()")
    if long := next((name for name in tensors if len(name) > _LONGEST_NAME), None):
        raise CheckpointError(
            f"{path}: the tensor {long[:60]}… has a name of {len(long):,} characters; the limit is "
            f"{_LONGEST_NAME:,}"
        )
    return renamed(tensors, renames)


def read_values(path: Path) -> dict[str, Any]:
    """Read what a file of `torch.save` has beside its state dict, by name; empty for others.

    Objects that only have attributes are dicts of these. Raises as `read_checkpoint`.
    """
    if path.suffix == ".safetensors":
        return {}
    try:
        with open_regular(path, memory_bytes()) as file:
            loaded = _load(path, file)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    if not isinstance(loaded, dict):
        return {}
    return {
        name: plain(value)
        for name, value in loaded.items()
        if isinstance(name, str) and not isinstance(value, Tensor)
    }


def _load(path: Path, file: BinaryIO) -> Any:
    """Return the content of a file that `torch.save` wrote."""
    if advice := foreign_file(path, file.read(8)):
        raise CheckpointError(f"{path} is {advice}")
    _check_archive(path, file)
    try:
        _scan(file)
        file.seek(0)
        with torch.serialization.safe_globals(list(BAGS)):
            return torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        what = f" ({shown(error)})" if isinstance(error, PickleRefused) else ""
        raise CheckpointError(
            f"{path} holds more than plain tensors{what}, or is not a checkpoint. It is not "
            f"unpickled, because that could run code. {_HOW_TO_SAVE.format(path=str(path))}"
        ) from error


def _scan(file: BinaryIO) -> None:
    """Raise `PickleRefused` or another error for pickles that torch.load should not see."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    scan, archived = PickleScan(size), file.read(4) == _ARCHIVE
    file.seek(0)
    if archived:
        # torch's own reader: another one may find another pickle in the same file
        reader: Any = torch._C.PyTorchFileReader(file)
        if sum(map(reader.get_record_size, reader.get_all_records())) > size:
            raise PickleRefused("entries of more bytes than the file")
        scan.read(BytesIO(reader.get_record("data.pkl")))
        return
    for _ in range(_HEADERS):
        scan.read(file)
    scan.read(file)
    keys = scan.read(file)
    if not isinstance(keys, list) or not all(isinstance(key, str | bytes | int) for key in keys):
        raise PickleRefused("storages without names")


def _tensors(path: Path, loaded: Any) -> dict[str, Tensor]:
    """Return the plain tensors of the state dict in what a file holds."""
    for _ in range(_DEPTH):
        inner = _wrapped(path, loaded)
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
    _check_shared(path, loaded)
    return {str(name): tensor.detach() for name, tensor in loaded.items()}


def _check_shared(path: Path, tensors: Mapping[Any, Tensor]) -> None:
    """Raise `CheckpointError` if the tensors have far more numbers together than the file.

    Tied weights share theirs, so a few times as many are fine.
    """
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors.values()}
    stored = sum(tensor.untyped_storage().nbytes() for tensor in storages.values())
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if size > max(_MAX_SHARES * stored, _SMALL_BYTES):
        raise CheckpointError(
            f"{path} has tensors of {size:,} bytes, which share {stored:,} bytes: save copies of "
            "those that belong to it (tensor.clone())"
        )


def _check_archive(path: Path, file: BinaryIO) -> None:
    """Raise `CheckpointError` for another framework's archive, or one larger than its file.

    torch.save does not compress, but torch.load unpacks compressed entries, which may be a thousand
    times larger.
    """
    try:
        with ZipFile(file) as archive:
            entries = archive.infolist()
            advice = foreign_archive(archive.namelist())
        size = file.seek(0, os.SEEK_END)
    except (OSError, ValueError, BadZipFile):  # torch.load has the better message
        return
    except (RuntimeError, EOFError) as error:  # such as NotImplementedError, for its version
        raise CheckpointError(
            f"{path} is a damaged archive ({shown(error)}); save it with torch.save again"
        ) from error
    if advice:
        raise CheckpointError(f"{path} is {advice}")
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > size or any(entry.compress_type != ZIP_STORED for entry in entries):
        raise CheckpointError(
            f"{path} holds {unpacked:,} bytes in a file of {size:,} bytes, so torch.save did not "
            "write it; unpack it and save its tensors with torch.save"
        )


def _wrapped(path: Path, loaded: Any) -> Any:
    """Return the dict inside a wrapper, or None if `loaded` is no wrapper."""
    if not isinstance(loaded, dict):
        return None
    for key in _WRAPPERS:
        if isinstance(loaded.get(key), dict):
            return loaded[key]
    if any(isinstance(value, Tensor) for value in loaded.values()):
        return None
    inner = [key for key, value in loaded.items() if _is_state_dict(value)]
    if len(inner) > 1:
        raise CheckpointError(
            f"{path} holds {len(inner)} state dicts ({_some(inner)}); save one of them alone"
        )
    return loaded[inner[0]] if inner else None


def _is_state_dict(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(name, str) and isinstance(t, Tensor) for name, t in value.items())
    )


def _some(names: list[Any]) -> str:
    return ", ".join(name[:79] + "…" if len(name) > 80 else name for name in map(str, names[:5]))


def _is_plain(tensor: Tensor) -> bool:
    """Whether the file holds every number of a tensor; an expanded one can have any size."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return False
    if tensor.is_quantized or tensor.is_meta or tensor.dim() > _DIMENSIONS:
        return False
    return tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()
