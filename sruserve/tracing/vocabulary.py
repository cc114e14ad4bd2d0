"""The vocabulary of a saved module, from whatever its training script has."""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer

from sruserve.model.errors import ModelError, OptionError
from sruserve.model.importers.vocabulary import vocabulary

Vocabulary = str | Path | Tokenizer | Sequence[str] | Sequence[int] | bytes | Mapping[str, int]


def vocabulary_files(
    tokenizer: Vocabulary | None, size: int | None, lowercase: bool | None
) -> dict[str, bytes]:
    """Return file names and contents of a vocabulary of `size` entries; raises `OptionError`.

    lowercase: see `save`.
    """
    if tokenizer is None:
        return {}
    if size is None:
        raise OptionError("tokenizer: the module reads features, so omit it")

    def warn(message: str) -> None:
        if lowercase is None:
            warnings.warn(_in_python(message), stacklevel=5)

    try:
        if isinstance(tokenizer, str | Path):
            return vocabulary(Path(tokenizer), size, bool(lowercase), warn)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "vocabulary.json"
            path.write_text(_content(tokenizer))
            return vocabulary(path, size, bool(lowercase), warn)
    except ModelError as error:
        raise OptionError(_in_python(str(error))) from error


def _in_python(message: str) -> str:
    """Return a message of the command line with the names of arguments."""
    message = message.replace("import with --lowercase", "pass lowercase=True (or False, if not)")
    return message.replace("--vocab", "tokenizer").replace("--lowercase", "lowercase")


def _content(tokenizer: Any) -> str:
    if callable(getattr(tokenizer, "to_str", None)):  # a Tokenizer
        if getattr(tokenizer, "encode_special_tokens", False):
            raise OptionError(
                "tokenizer: encode_special_tokens is set, which a tokenizer.json does not hold, so "
                "special tokens in texts would be read as such: set it to False, as in training, "
                "or remove them with tokenizer.add_special_tokens"
            )
        return str(tokenizer.to_str())
    return json.dumps(dict(tokenizer) if isinstance(tokenizer, Mapping) else list(tokenizer))
