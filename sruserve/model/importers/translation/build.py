"""Build the model folder of a translation system from a checkpoint and the user's options."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError
from torch import Tensor

from sruserve.model.config import explain
from sruserve.model.errors import CheckpointError, OptionError, printable
from sruserve.model.folder_files import SOURCE_FILE, TARGET_FILE
from sruserve.model.importers.build import check_numbers, read_object
from sruserve.model.importers.checkpoint import read_checkpoint
from sruserve.model.importers.formats import TRANSLATION_FORMATS
from sruserve.model.importers.names import listed
from sruserve.model.importers.translation.format import load_translation_format
from sruserve.model.importers.translation.sides import side_config, vocabularies
from sruserve.model.text.vocabulary_files import WORDS_FILE
from sruserve.model.translation.config import TranslationConfig
from sruserve.model.translation.folder import TranslationModel, save_translation


def import_translation(
    weights: Path,
    out: Path,
    options: Path | None = None,
    vocab: Path | None = None,
    target_vocab: Path | None = None,
    format: str = "auto",  # noqa: A002
    renames: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
    lowercase: bool = False,
    warn: Callable[[str], None] = lambda _: None,
    assume: Callable[[str], None] = lambda _: None,
) -> TranslationModel:
    """Write the model folder `out` from a checkpoint, load it back and return it.

    options: file with a JSON object of the constructor's arguments, and `source` and `target` with
        the special ids of each side.
    vocab: a vocabulary as in `import_checkpoint`: of both languages, or of the source.
    target_vocab: that of the target, if it has its own.
    format: a name in `TRANSLATION_FORMATS`; "auto" recognises it by the tensors' names.
    lowercase: sources are put into lower case before they are read.
    renames, progress, warn, assume: as in `import_checkpoint`.

    Raises `CheckpointError`, `OptionError`, `FolderError` or another `ModelError`.
    """
    progress("reading the checkpoint")
    tensors = read_checkpoint(weights, renames)
    name = _recognised(tensors) if format == "auto" else format
    if name not in TRANSLATION_FORMATS:
        raise OptionError(
            f"--format {name} has no translation systems; use one of "
            f"{', '.join(TRANSLATION_FORMATS)}"
        )
    arguments = {} if options is None else read_object(options)
    sides = {side: arguments.pop(side, {}) for side in ("source", "target")}
    imported = load_translation_format(TRANSLATION_FORMATS[name]).read(tensors, arguments)
    for note in imported.notes:
        warn(printable(note))
    progress("checking tensors and vocabularies")
    check_numbers(imported.tensors)
    if lowercase and vocab is None:
        raise OptionError("--lowercase concerns texts: add --vocab, or omit it")
    sizes = (imported.source_size, imported.target_size)
    words = vocabularies(vocab, target_vocab, sizes, lowercase, warn)
    for assumption in imported.assumed:
        assume(assumption)
    both = words.get(WORDS_FILE)
    source = side_config(sides["source"], sizes[0], words.get(SOURCE_FILE, both), "source", assume)
    target = side_config(sides["target"], sizes[1], words.get(TARGET_FILE, both), "target", assume)
    try:
        config = TranslationConfig(
            architectures=(
                f"{type(imported.system).__name__.removesuffix('Config')}ForTranslation",
            ),
            source=source,
            target=target,
            system=imported.system,
        )
    except ValidationError as error:
        raise CheckpointError(
            f"the checkpoint is not a translation system: {explain(error)}"
        ) from error
    progress("writing the model folder")
    return save_translation(out, config, imported.tensors, words)


def _recognised(tensors: Mapping[str, Tensor]) -> str:
    """Return the one format that has tensors of these names, or raise `CheckpointError`."""
    fitting = [
        name
        for name, module in TRANSLATION_FORMATS.items()
        if load_translation_format(module).recognises(tensors)
    ]
    if len(fitting) == 1:
        return fitting[0]
    raise CheckpointError(
        f"the tensors ({listed(tensors)}) are those of no known translation system: choose "
        f"--format, one of {', '.join(TRANSLATION_FORMATS)}; --rename OLD=NEW changes a name or a "
        "prefix"
    )
