"""The model folder of a translation system: load, save."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from sruserve.model.atomic_dir import replace_directory
from sruserve.model.errors import FolderError, ModelError
from sruserve.model.files import MAX_TEXT_BYTES, read_regular
from sruserve.model.folder_files import (
    PRESETS_FILE,
    SOURCE_FILE,
    TARGET_FILE,
    WEIGHTS_FILE,
    check_destination,
    check_tensors,
    located,
    model_digest,
    read_weights,
    resolved,
    write_files,
)
from sruserve.model.text.tokenizer_trial import check_tokenizer
from sruserve.model.text.vocabulary_files import WORDS_FILE, tokenizer_codec
from sruserve.model.translation.build import make_translator, translation_shapes
from sruserve.model.translation.config import (
    SideConfig,
    TranslationConfig,
    is_translation,
    read_translation_config,
)
from sruserve.model.translation.text import SideText
from sruserve.model.translation.translator import Translator
from sruserve.model.versions import CONFIG_FILE, newest

_VOCABULARIES = (WORDS_FILE, SOURCE_FILE, TARGET_FILE)


@dataclass(frozen=True)
class TranslationModel:
    """A loaded translation system.

    name, version, digest, parameters: as in `Model`.
    source_text, target_text: None: the model takes and returns ids.
    """

    name: str
    version: str
    path: Path
    config: TranslationConfig
    translator: Translator
    source_text: SideText | None
    target_text: SideText | None
    digest: str
    parameters: int

    @property
    def dtype(self) -> str:
        return self.config.dtype


def is_translation_folder(path: Path) -> bool:
    """Whether a folder, or the newest version in it, has the config of a translation system."""
    try:
        return is_translation(newest(resolved(path))[1])
    except (ModelError, OSError):
        return False  # the loader of other models has the better message


def load_translation(path: Path) -> TranslationModel:
    """Load the model folder of a translation system, or the newest version in one.

    The folder has its vocabularies in source.json and target.json, or both in tokenizer.json, each
    in the format of a tokenizer.json; without any, the model takes and returns ids.

    Raises `FolderError`, `ConfigError` or `CheckpointError`. Nothing is unpickled.
    """
    name = resolved(path).name
    version, path = located(path)
    config = read_translation_config(path / CONFIG_FILE)
    shapes = translation_shapes(config)
    tensors, recorded = read_weights(path / WEIGHTS_FILE, shapes)
    check_tensors(tensors, shapes, str(path / WEIGHTS_FILE))
    vocabulary = _read_vocabularies(path)
    digest = model_digest(config, tensors, vocabulary)
    if recorded != digest:
        raise FolderError(
            f"{path} was changed after its import: the digest in {WEIGHTS_FILE} is that of other "
            "weights, another config or other vocabularies; import the checkpoint again"
        )
    return TranslationModel(
        name,
        version,
        path,
        config,
        make_translator(config, tensors),
        _side_text(vocabulary, SOURCE_FILE, config.source, path),
        _side_text(vocabulary, TARGET_FILE, config.target, path),
        digest,
        sum(t.numel() for name, t in tensors.items() if not name.endswith("scale_x")),
    )


def save_translation(
    path: Path,
    config: TranslationConfig,
    tensors: Mapping[str, Tensor],
    vocabulary: Mapping[str, bytes],
    check: Callable[[TranslationModel], None] = lambda _: None,
) -> TranslationModel:
    """Write the model folder of a translation system, load it back and return it.

    tensors: named as in `translation_shapes`. vocabulary: contents by file name.
    check: called with the loaded model; if it raises `ModelError`, nothing is replaced.

    Replaces a model folder at `path` once the new one has been loaded; its presets stay.

    Raises `FolderError` if `path` is anything else, and every error of `load_translation`.
    """
    path = resolved(path)
    try:
        check_destination(path)
    except PermissionError as error:
        raise FolderError(f"cannot write {path}: {error.strerror}") from error
    check_tensors(tensors, translation_shapes(config), "the checkpoint")
    try:
        with replace_directory(path) as new:
            write_files(new, config, tensors, vocabulary)
            if (path / PRESETS_FILE).exists():
                (new / PRESETS_FILE).write_bytes(read_regular(path / PRESETS_FILE))
            try:
                model = load_translation(new)
                check(model)
                return replace(model, name=path.name, path=path)
            except ModelError as error:  # it names the temporary folder
                raise type(error)(str(error).replace(str(new), str(path))) from error
    except (OSError, SafetensorError) as error:
        raise FolderError(f"cannot write {path}: {error}") from error


def _read_vocabularies(folder: Path) -> dict[str, bytes]:
    """Return the contents of a folder's vocabulary files, by file name."""
    contents = {}
    for name in _VOCABULARIES:
        try:
            contents[name] = read_regular(folder / name, MAX_TEXT_BYTES)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise FolderError(f"cannot read {folder / name}: {error.strerror}") from error
    if set(contents) not in ({WORDS_FILE}, {SOURCE_FILE, TARGET_FILE}, set()):
        raise FolderError(
            f"{folder} has {' and '.join(contents)}; a translation system has {SOURCE_FILE} and "
            f"{TARGET_FILE}, or {WORDS_FILE} for both languages"
        )
    return contents


def _side_text(
    vocabulary: Mapping[str, bytes], file: str, side: SideConfig, folder: Path
) -> SideText | None:
    """Make the vocabulary of one side; None without one."""
    name = WORDS_FILE if WORDS_FILE in vocabulary else file
    if name not in vocabulary:
        return None
    check_tokenizer(vocabulary[name], folder / name)
    codec = tokenizer_codec(vocabulary[name], f"{folder}/{name}")
    if codec.size != side.vocab_size:
        raise FolderError(
            f"{folder}: {name} has {codec.size} entries, but the config's vocab_size is "
            f"{side.vocab_size}; import the checkpoint with its own vocabulary"
        )
    return SideText(codec, side)
