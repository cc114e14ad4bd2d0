"""The vocabulary of a saved module, from whatever its training script has."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer

from sruserve.model.errors import ModelError, OptionError
from sruserve.model.importers.vocabulary import vocabulary

Vocabulary = str | Path | Tokenizer | Sequence[str] | Sequence[int] | bytes | Mapping[str, int]


def vocabulary_files(given: Vocabulary | None, size: int | None) -> dict[str, bytes]:
    """Return file names and contents of a vocabulary of `size` entries; raises `OptionError`.

    A list or a dict of single characters makes a vocabulary of characters, any other one of words.
    """
    if given is None:
        return {}
    if size is None:
        raise OptionError("tokenizer: the module reads features, so omit it")
    try:
        if isinstance(given, str | Path):
            return vocabulary(Path(given), size)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "vocabulary.json"
            path.write_text(_content(given))
            return vocabulary(path, size)
    except ModelError as error:  # its messages are those of the command line
        raise OptionError(str(error).replace("--vocab", "tokenizer")) from error


def _content(given: Any) -> str:
    if isinstance(given, Tokenizer):
        return str(given.to_str())
    if callable(getattr(given, "to_str", None)):
        return str(given.to_str())
    if isinstance(given, Mapping):
        words = sorted(given, key=given.__getitem__)
        if [given[word] for word in words] != list(range(len(words))):
            raise OptionError("tokenizer: its ids must be 0, 1, … without gaps")
        given = words
    return json.dumps(list(given))
