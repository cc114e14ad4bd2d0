"""Convert the vocabulary file of `--vocab` to that of a model folder."""

import json
import re
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from sruserve.model.errors import OptionError
from sruserve.model.files import read_regular
from sruserve.model.text import BYTES_FILE, WORDS_FILE, Words, is_byte_list

UNKNOWN_WORDS = ("<oov>", "<unk>", "<UNK>")


def vocabulary(path: Path, size: int | None) -> dict[str, bytes]:
    """Return file name and content for a vocabulary of `size` entries, or raise `OptionError`.

    With a list of words without an entry for unknown words, the model refuses unknown words.
    """
    if size is None:
        raise OptionError(
            "--vocab: the checkpoint has no embedding, so its inputs are features; omit --vocab"
        )
    data = _read(path)
    content = _parsed(path, data)
    entries = Words(data, path).size if isinstance(content, dict) else size
    if isinstance(content, list):
        entries = len(content)
    if entries != size:
        raise OptionError(
            f"--vocab has {entries} entries, but the embedding has {size} rows; they must be equal"
        )
    if isinstance(content, dict):
        return {WORDS_FILE: data}
    if is_byte_list(content):
        return {BYTES_FILE: json.dumps(content).encode()}
    if not is_string_list(content) or len(set(content)) != len(content):
        raise OptionError(
            "--vocab must be a tokenizer.json, or a JSON list of distinct words or byte values"
        )
    words = {word: i for i, word in enumerate(content)}
    unknown = next((word for word in UNKNOWN_WORDS if word in words), None)
    model = WordLevel(words) if unknown is None else WordLevel(words, unk_token=unknown)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return {WORDS_FILE: tokenizer.to_str(pretty=False).encode()}


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or raise `OptionError`."""
    return _parsed(path, _read(path))


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror}") from error


def _parsed(path: Path, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path} is not valid JSON: {error}") from error


def is_string_list(content: Any) -> bool:
    """Whether a JSON value lists strings that UTF-8 can encode; JSON allows lone surrogates."""
    return isinstance(content, list) and all(
        isinstance(entry, str) and not re.search("[\ud800-\udfff]", entry) for entry in content
    )
