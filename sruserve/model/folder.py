"""A model folder: `config.json`, `model.safetensors` and the vocabulary; load, save, digest."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from sruserve.kernels.devices import CPU
from sruserve.model.config import ModelConfig, read_config
from sruserve.model.errors import (
    CheckpointError,
    ConfigError,
    DTypeError,
    FolderError,
    ModelError,
)
from sruserve.model.files import read_regular
from sruserve.model.network import Network, network_shapes
from sruserve.model.replacing import replacing
from sruserve.model.text import BYTES_FILE, WORDS_FILE, Codec, make_codec
from sruserve.model.versions import CONFIG_FILE, newest
from sruserve.model.weights import read_tensors

WEIGHTS_FILE, PRESETS_FILE = "model.safetensors", "presets.json"
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_WIDEST_BYTES = 8  # of a float
_FILES = {CONFIG_FILE, WEIGHTS_FILE, WORDS_FILE, BYTES_FILE, PRESETS_FILE}


@dataclass(frozen=True)
class Model:
    """A loaded model folder.

    name: the folder's. version: the number of the folder in it, "1" where there is none.
    digest: of weights, maths and vocabulary. parameters: trained numbers.
    """

    name: str
    version: str
    path: Path
    config: ModelConfig
    network: Network
    codec: Codec | None
    digest: str
    parameters: int

    @property
    def labels(self) -> tuple[str, ...]:
        return self.config.labels

    @property
    def dtype(self) -> str:
        return str(self.network.dtype).removeprefix("torch.")


def load_model(
    path: Path, dtype: str | None = None, device: torch.device = CPU, fast: bool = False
) -> Model:
    """Load a model folder, or the newest version in one, to compute in `dtype` on `device`.

    Every file is read once, into the process's own memory: what the digest is taken of is what is
    computed with, whatever becomes of the files.

    dtype: "float32", "bfloat16" or, on a GPU, "float16"; None: as the model's config says.
    fast: on a GPU, kernels chosen by the number of rows; the bits of a row then depend on it.

    Raises `FolderError`, `ConfigError`, `CheckpointError` or `DTypeError`. Nothing is unpickled.
    """
    path = _resolved(path)
    if not path.is_dir():
        raise FolderError(f"{path} is no folder; `sruserve import` makes model folders")
    name = path.name
    version, path = newest(path)
    config = read_config(path / CONFIG_FILE)
    compute = compute_dtype(config, dtype, device)
    shapes = network_shapes(config)
    tensors, stored = _read_weights(path / WEIGHTS_FILE, shapes)
    check_tensors(tensors, shapes, str(path / WEIGHTS_FILE))
    vocabulary = _read_vocabulary(path)
    digest = model_digest(config, tensors, vocabulary)
    if stored != digest:
        raise FolderError(
            f"{path} was changed after its import: {WEIGHTS_FILE} carries the digest of other "
            "weights, config or vocabulary; import the checkpoint again"
        )
    codec = make_codec(vocabulary, path)
    if codec is not None and codec.size != config.vocab_size:
        raise FolderError(
            f"{path}: the vocabulary has {codec.size} entries and config.json says "
            f"vocab_size {config.vocab_size}"
        )
    untrained = config.rnn.untrained
    parameters = sum(t.numel() for name, t in tensors.items() if not name.endswith(untrained))
    network = Network(config, tensors, compute, device, fast)
    return Model(name, version, path, config, network, codec, digest, parameters)


def compute_dtype(config: ModelConfig, dtype: str | None, device: torch.device) -> torch.dtype:
    """What a network is to compute in: `dtype`, or what its config says.

    Raises `DTypeError` for float16 on the CPU, whose products and recurrence have none.
    """
    name = dtype or config.dtype
    if name == "float16" and device.type == "cpu":
        raise DTypeError("float16 runs on a GPU only: set its dtype to bfloat16 or float32")
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def save_model(
    path: Path,
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    vocabulary: Mapping[str, bytes] | None = None,
) -> Model:
    """Write a model folder, load it back and return it. `vocabulary` maps file names to contents.

    Another model folder at `path` is replaced, once the new one has been loaded; its presets stay.
    Raises `FolderError` if anything else is there, and what `load_model` raises.
    """
    path = _resolved(path)
    check_destination(path)
    check_tensors(tensors, network_shapes(config), "the checkpoint")
    try:
        with replacing(path) as new:
            _write(new, config, tensors, vocabulary or {})
            if (path / PRESETS_FILE).exists():  # the operator's, of the model that is replaced
                (new / PRESETS_FILE).write_bytes(read_regular(path / PRESETS_FILE))
            try:
                # checked on the CPU, which has no float16
                dtype = "float32" if config.dtype == "float16" else None
                return replace(load_model(new, dtype), path=path)
            except ModelError as error:  # it names a folder that nobody will find
                raise type(error)(str(error).replace(str(new), str(path))) from error
    except (OSError, SafetensorError) as error:
        raise FolderError(f"cannot write {path}: {error}") from error


def check_destination(path: Path) -> None:
    """Raise `FolderError` unless `path` is free, or an empty folder, or a model folder."""
    if not path.exists():
        return
    if not path.is_dir():
        raise FolderError(f"{path} is a file; name a folder to write")
    names = {entry.name for entry in path.iterdir()}
    if not names:
        return
    refusal = "is not empty and no model folder, so it is not replaced; name another"
    if CONFIG_FILE not in names:
        raise FolderError(f"{path} {refusal}")
    if names - _FILES:
        raise FolderError(f"{path} {refusal}: it holds {', '.join(sorted(names - _FILES)[:5])}")
    try:
        read_config(path / CONFIG_FILE)
    except ConfigError as error:
        raise FolderError(f"{path} {refusal}: {error}") from error


def check_tensors(
    tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], source: str
) -> None:
    """Raise `CheckpointError` naming every missing, extra, misshapen or non-float tensor."""
    wrong = [f"{name} is missing" for name in expected if name not in tensors]
    for name, tensor in tensors.items():
        if name not in expected:
            wrong.append(f"{name if len(name) <= 80 else name[:79] + '…'} is not expected")
        elif tuple(tensor.shape) != expected[name]:
            wrong.append(f"{name} is {list(tensor.shape)}, not {list(expected[name])}")
        elif tensor.dtype not in _FLOATS:
            wrong.append(f"{name} holds {tensor.dtype}, not floats")
    if wrong:
        shown = "; ".join(wrong[:12]) + (f"; and {len(wrong) - 12} more" if len(wrong) > 12 else "")
        raise CheckpointError(f"{source} does not fit the network that is described: {shown}")


def model_digest(
    config: ModelConfig, tensors: Mapping[str, Tensor], vocabulary: Mapping[str, bytes]
) -> str:
    """SHA-256, in hex, of all that fixes what a model computes.

    vocabulary: contents by file name.
    """
    maths = {"model_type", "task", "vocab_size", "rnn", "embedding", "head"}
    described = config.model_dump(mode="json", include=maths, exclude_defaults=True)
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"\0{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().data)
    for name in (WORDS_FILE, BYTES_FILE):
        if name in vocabulary:
            digest.update(f"\0{name}\0".encode() + vocabulary[name])
    return digest.hexdigest()


def _resolved(path: Path) -> Path:
    """The path without symbolic links, or `FolderError` where they go in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop; a NUL byte
        raise FolderError(f"{path} leads nowhere: {error}") from error


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors without common memory, which the file format cannot express."""
    own: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        own[name] = tensor.contiguous()
        if own[name].untyped_storage().data_ptr() in seen:
            own[name] = own[name].clone()
        seen.add(own[name].untyped_storage().data_ptr())
    return own


def _write(
    folder: Path,
    config: ModelConfig,
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
    # The library writes for the owner alone; a server often runs as somebody else.
    (folder / WEIGHTS_FILE).chmod((folder / CONFIG_FILE).stat().st_mode)


def _read_weights(
    path: Path, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Tensor], str | None]:
    """The tensors of a safetensors file and the digest in its metadata."""
    most_bytes = _WIDEST_BYTES * sum(prod(shape) for shape in shapes.values())
    try:
        tensors, metadata = read_tensors(path, most_bytes)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    return tensors, metadata.get("digest")


def _read_vocabulary(folder: Path) -> dict[str, bytes]:
    """The contents of the vocabulary files that a folder has."""
    found = {}
    for name in (WORDS_FILE, BYTES_FILE):
        try:
            found[name] = read_regular(folder / name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise FolderError(f"cannot read {folder / name}: {error.strerror}") from error
    return found
