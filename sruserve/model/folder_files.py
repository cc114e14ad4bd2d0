"""The files of every model folder: where they are, how they are read, checked and written."""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from math import prod
from pathlib import Path
from types import MappingProxyType

import torch
from pydantic import BaseModel
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from sruserve.model.config import read_config
from sruserve.model.errors import CheckpointError, ConfigError, FolderError
from sruserve.model.text.vocabulary_files import BYTES_FILE, WORDS_FILE
from sruserve.model.translation.config import is_translation
from sruserve.model.versions import CONFIG_FILE, ONNX_FILE, is_onnx, newest
from sruserve.model.weights import read_tensors

WEIGHTS_FILE, PRESETS_FILE = "model.safetensors", "presets.json"
CASE_FILE = "case.safetensors"  # inputs, and the answers of the module that was saved
SOURCE_FILE, TARGET_FILE = "source.json", "target.json"  # vocabularies of a translation system
_FILES = {
    CONFIG_FILE,
    WEIGHTS_FILE,
    WORDS_FILE,
    BYTES_FILE,
    SOURCE_FILE,
    TARGET_FILE,
    PRESETS_FILE,
    CASE_FILE,
}
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_WIDEST_BYTES = 8  # of a float


def located(path: Path) -> tuple[str, Path]:
    """Return the newest version of a model folder, and its own folder.

    Raises `FolderError` or `ConfigError` for what is no model folder.
    """
    path = resolved(path)
    try:
        if not path.is_dir():
            what = "is not a folder" if path.exists() else "does not exist"
            raise FolderError(f"{path} {what}; create model folders with `sruserve import`")
        with suppress(FileNotFoundError):
            (path / CONFIG_FILE).lstat()
        version, path = newest(path)
    except PermissionError as error:
        raise FolderError(f"cannot read {path}: {error.strerror}") from error
    if not os.path.lexists(path / CONFIG_FILE):
        if is_onnx(path):
            raise ConfigError(
                f"{path} is an exported model: it has {ONNX_FILE}, and no {CONFIG_FILE} and "
                "weights; name the folder that was exported"
            )
        raise ConfigError(
            f"{path} is not a model folder: it has neither {CONFIG_FILE} nor {ONNX_FILE}, and no "
            "numeric folder that has one of these; create model folders with `sruserve import`"
        )
    return version, path


def resolved(path: Path) -> Path:
    """Return the path without symbolic links, or raise `FolderError` if they form a loop."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop; a NUL byte
        raise FolderError(f"cannot resolve {path}: {error}") from error


def check_destination(path: Path) -> None:
    """Raise `FolderError` unless `path` does not exist, or is an empty folder or a model folder."""
    if not path.exists():
        return
    if not path.is_dir():
        raise FolderError(f"{path} is a file; choose a folder to write")
    names = {entry.name for entry in path.iterdir()}
    if not names:
        return
    refusal = "is not empty and not a model folder, so it is not replaced; choose another folder"
    if CONFIG_FILE not in names:
        raise FolderError(f"{path} {refusal}")
    if names - _FILES:
        raise FolderError(f"{path} {refusal}: it holds {', '.join(sorted(names - _FILES)[:5])}")
    try:
        _ = is_translation(path) or read_config(path / CONFIG_FILE)
    except ConfigError as error:
        raise FolderError(f"{path} {refusal}: {error}") from error


def check_tensors(
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, tuple[int, ...]],
    source: str,
    dtypes: Mapping[str, torch.dtype] = MappingProxyType({}),
) -> None:
    """Raise `CheckpointError` that names every missing, extra, misshapen or mistyped tensor.

    dtypes: of the tensors that have one of their own; the others hold any floats.
    """
    wrong = [f"{name} is missing" for name in expected if name not in tensors]
    for name, tensor in tensors.items():
        if name not in expected:
            wrong.append(f"{name if len(name) <= 80 else name[:79] + '…'} is not expected")
        elif tuple(tensor.shape) != expected[name]:
            wrong.append(f"{name} has shape {list(tensor.shape)}, not {list(expected[name])}")
        elif name in dtypes and tensor.dtype is not dtypes[name]:
            wrong.append(f"{name} holds {tensor.dtype}, not {dtypes[name]}")
        elif name not in dtypes and tensor.dtype not in _FLOATS:
            wrong.append(f"{name} holds {tensor.dtype}, not floats")
    if wrong:
        shown = "; ".join(wrong[:12]) + (f"; and {len(wrong) - 12} more" if len(wrong) > 12 else "")
        raise CheckpointError(
            f"{source} does not fit the network's description: {shown}; import a whole checkpoint, "
            "with the options of its training"
        )


def model_digest(
    config: BaseModel, tensors: Mapping[str, Tensor], vocabulary: Mapping[str, bytes]
) -> str:
    """Return the SHA-256, in hex, of everything that determines a model's results.

    vocabulary: contents by file name.
    """
    maths = set(type(config).model_fields) - {"architectures", "description", "dtype", "id2label"}
    described = config.model_dump(mode="json", include=maths, exclude_defaults=True)
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"\0{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().data)
    first = (WORDS_FILE, BYTES_FILE)
    for name in (*first, *sorted(set(vocabulary) - set(first))):
        if name in vocabulary:
            digest.update(f"\0{name}\0".encode() + vocabulary[name])
    return digest.hexdigest()


def read_weights(
    path: Path, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Tensor], str | None]:
    """Return the tensors of a safetensors file and the digest in its metadata."""
    max_bytes = _WIDEST_BYTES * sum(prod(shape) for shape in shapes.values())
    try:
        tensors, metadata = read_tensors(path, max_bytes)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    return tensors, metadata.get("digest")


def write_files(
    folder: Path,
    config: BaseModel,
    tensors: Mapping[str, Tensor],
    vocabulary: Mapping[str, bytes],
) -> None:
    """Fill an empty folder."""
    for name, content in vocabulary.items():
        (folder / name).write_bytes(content)
    (folder / CONFIG_FILE).write_text(config.model_dump_json(indent=2, exclude_none=True) + "\n")
    weights = _unshared(tensors)
    digest = model_digest(config, weights, vocabulary)
    save_file(weights, folder / WEIGHTS_FILE, {"format": "pt", "digest": digest})
    # The library lets only the owner read the file, but a server often runs as another user.
    (folder / WEIGHTS_FILE).chmod((folder / CONFIG_FILE).stat().st_mode)


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors without shared memory, which the file format cannot express."""
    own: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        own[name] = tensor.contiguous()
        if own[name].untyped_storage().data_ptr() in seen:
            own[name] = own[name].clone()
        seen.add(own[name].untyped_storage().data_ptr())
    return own
