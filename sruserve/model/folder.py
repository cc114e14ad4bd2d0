"""A model folder: `config.json`, `model.safetensors` and the vocabulary; load, save, digest."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from sruserve.kernels.devices import CPU
from sruserve.model.atomic_dir import replace_directory
from sruserve.model.config import ModelConfig, read_config
from sruserve.model.errors import (
    DTypeError,
    FolderError,
    ModelError,
)
from sruserve.model.files import MAX_TEXT_BYTES, read_regular
from sruserve.model.folder_files import (
    CASE_FILE,
    PRESETS_FILE,
    WEIGHTS_FILE,
    check_destination,
    check_tensors,
    located,
    model_digest,
    read_weights,
    resolved,
    write_files,
)
from sruserve.model.network import Network, network_shapes
from sruserve.model.quantized import (
    restored_tensors,
    stored_dtypes,
    stored_shapes,
    stored_tensors,
)
from sruserve.model.reader.network import Reader
from sruserve.model.runtime import Runtime
from sruserve.model.text.codec import Codec
from sruserve.model.text.tokenizer_trial import check_tokenizer
from sruserve.model.text.vocabulary_files import BYTES_FILE, WORDS_FILE, make_codec
from sruserve.model.versions import CONFIG_FILE

_LARGEST_BYTES_FILE = 64 << 10  # in bytes; it has 256 small numbers at most


@dataclass(frozen=True)
class Model:
    """A loaded model folder.

    name: the folder's name. version: the name of its numeric subfolder; "1" without one.
    digest: SHA-256 of weights, config and vocabulary, in hex; see `model_digest`.
    parameters: number of trained numbers.
    graphs: checksums of the ONNX graphs that compute it; empty for the compiled kernels.
    """

    name: str
    version: str
    path: Path
    config: ModelConfig
    network: Runtime
    codec: Codec | None
    digest: str
    parameters: int
    graphs: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        return self.config.labels

    @cached_property
    def not_streamable_because(self) -> str | None:
        """Why no state can continue an input of this model; None: a state can."""
        if self.network.not_streamable_because is not None or self.codec is None:
            return self.network.not_streamable_because
        return self.codec.whole_because

    @property
    def dtype(self) -> str:
        return str(self.network.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class FolderContents:
    """The files of a model folder, read and checked.

    version, path: see `Model`. tensors: named as in `network_shapes`, with the dtypes of the file,
    but int8 weights as float32.
    vocabulary: contents by file name. digest: see `model_digest`.
    """

    version: str
    path: Path
    config: ModelConfig
    tensors: dict[str, Tensor]
    vocabulary: dict[str, bytes]
    digest: str

    @property
    def parameters(self) -> int:
        """Number of trained numbers."""
        untrained = self.config.rnn.untrained
        return sum(t.numel() for name, t in self.tensors.items() if not name.endswith(untrained))


def read_folder(path: Path) -> FolderContents:
    """Read a model folder, or the newest version in one.

    Reads every file once, into the process's own memory. So the digest is that of the tensors in
    use, even if the files change.

    Raises `FolderError`, `ConfigError` or `CheckpointError`. Nothing is unpickled.
    """
    version, path = located(path)
    config = read_config(path / CONFIG_FILE)
    shapes, source = stored_shapes(config), str(path / WEIGHTS_FILE)
    stored, recorded = read_weights(path / WEIGHTS_FILE, shapes)
    check_tensors(stored, shapes, source, stored_dtypes(config))
    tensors = restored_tensors(config, stored, source)
    vocabulary = _read_vocabulary(path)
    digest = model_digest(config, stored, vocabulary)
    if recorded != digest:
        if config.vocab_size is not None and not vocabulary:
            raise FolderError(
                f"{path} was changed after its import: it has neither {WORDS_FILE} nor "
                f"{BYTES_FILE}; if the model was imported with a vocabulary, restore its file, or "
                "import the checkpoint again"
            )
        raise FolderError(
            f"{path} was changed after its import: the digest in {WEIGHTS_FILE} is that of other "
            "weights, another config or another vocabulary; import the checkpoint again"
        )
    return FolderContents(version, path, config, tensors, vocabulary, digest)


def load_model(
    path: Path, dtype: str | None = None, device: torch.device = CPU, fast: bool = False
) -> Model:
    """Load a model folder, or the newest version in one, to compute in `dtype` on `device`.

    dtype: "float32", "bfloat16" or, on a GPU, "float16"; None takes that of the model's config.
    fast: on a GPU, choose kernels by the number of rows; a row's last bits then depend on it.

    Raises `DTypeError`, and every error of `read_folder`.
    """
    name = resolved(path).name
    folder = read_folder(path)
    config, tensors, path = folder.config, folder.tensors, folder.path
    compute = compute_dtype(config, dtype, device)
    if WORDS_FILE in folder.vocabulary:
        check_tokenizer(folder.vocabulary[WORDS_FILE], path / WORDS_FILE)
    codec = make_codec(folder.vocabulary, path)
    if codec is not None and codec.size != config.vocab_size:
        raise FolderError(
            f"{path}: the vocabulary has {codec.size} entries, but vocab_size in {CONFIG_FILE} is "
            f"{config.vocab_size}; import the checkpoint with its own vocabulary"
        )
    network: Runtime
    if config.reader is None:
        network = Network(config, tensors, compute, device, fast)
    elif codec is None:
        raise FolderError(
            f"{path} has no vocabulary, and a model of task answer reads words alone: "
            "import it again"
        )
    else:
        network = Reader(config, tensors, compute, device, fast)
    return Model(
        name, folder.version, path, config, network, codec, folder.digest, folder.parameters
    )


def compute_dtype(config: ModelConfig, dtype: str | None, device: torch.device) -> torch.dtype:
    """Return the compute dtype: `dtype`, or else that of the config.

    Raises `DTypeError` for float16 on the CPU, whose kernels do not support it.
    """
    name = dtype or config.dtype
    if name == "float16" and device.type == "cpu":
        raise DTypeError("float16 runs on a GPU only: set the dtype to bfloat16 or float32")
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def save_model(
    path: Path,
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    vocabulary: Mapping[str, bytes] | None = None,
    case: Mapping[str, Tensor] | None = None,
    check: Callable[[Model], None] = lambda _: None,
) -> Model:
    """Write a model folder, load it back and return it.

    tensors: named as in `network_shapes`; rounded to int8 if the config says so.
    vocabulary: contents by file name.
    case: tensors of a `Case` to write beside the model.
    check: called with the loaded model; if it raises `ModelError`, nothing is replaced.

    Replaces a model folder at `path` once the new one has been loaded; its presets stay.

    Raises `FolderError` if `path` is anything else, and every error of `load_model`.
    """
    path = resolved(path)
    try:
        check_destination(path)
    except PermissionError as error:
        raise FolderError(f"cannot write {path}: {error.strerror}") from error
    check_tensors(tensors, network_shapes(config), "the checkpoint")
    stored = stored_tensors(config, tensors)
    try:
        with replace_directory(path) as new:
            write_files(new, config, stored, vocabulary or {})
            if case is not None:
                save_file(dict(case), new / CASE_FILE)
                (new / CASE_FILE).chmod((new / CONFIG_FILE).stat().st_mode)
            if (path / PRESETS_FILE).exists():  # the operator's presets of the replaced model
                (new / PRESETS_FILE).write_bytes(read_regular(path / PRESETS_FILE))
            try:
                # The check runs on the CPU, which does not support float16.
                dtype = "float32" if config.dtype == "float16" else None
                model = load_model(new, dtype)
                check(model)
                return replace(model, path=path)
            except ModelError as error:  # it names the temporary folder
                raise type(error)(str(error).replace(str(new), str(path))) from error
    except (OSError, SafetensorError) as error:
        raise FolderError(f"cannot write {path}: {error}") from error


def _read_vocabulary(folder: Path) -> dict[str, bytes]:
    """Return the contents of a folder's vocabulary files, by file name."""
    contents = {}
    for name, max_bytes in ((WORDS_FILE, MAX_TEXT_BYTES), (BYTES_FILE, _LARGEST_BYTES_FILE)):
        try:
            contents[name] = read_regular(folder / name, max_bytes)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise FolderError(f"cannot read {folder / name}: {error.strerror}") from error
    return contents
