"""The codec of a vocabulary's files: a tokenizer.json, or a list of bytes."""

import json
from collections.abc import Mapping

from sruserve.model.errors import FolderError, brief, faults
from sruserve.model.text.byte_values import Bytes, is_byte_list
from sruserve.model.text.characters import Characters, splits_characters
from sruserve.model.text.codec import Codec
from sruserve.model.text.decoders import steps_of
from sruserve.model.text.normalized import MAX_NORMALIZED
from sruserve.model.text.separators import separators
from sruserve.model.text.subwords import Subwords
from sruserve.model.text.tokenizer_file import read_tokenizer
from sruserve.model.text.words import Words

WORDS_FILE, BYTES_FILE = "tokenizer.json", "bytes.json"


def make_codec(vocabulary: Mapping[str, bytes], folder: object) -> Codec | None:
    """Make the codec of a model folder's vocabulary files; None: the model takes and returns ids.

    vocabulary: contents by file name. folder: the folder's path, for error messages.

    Raises `FolderError`.
    """
    if WORDS_FILE in vocabulary:
        return tokenizer_codec(vocabulary[WORDS_FILE], f"{folder}/{WORDS_FILE}")
    if BYTES_FILE not in vocabulary:
        return None
    try:
        values = json.loads(vocabulary[BYTES_FILE])
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{folder}/{BYTES_FILE} is not valid JSON: {error}") from error
    if not is_byte_list(values):
        raise FolderError(
            f"{folder}/{BYTES_FILE} must be a JSON list of distinct integers, 0 to 255"
        )
    return Bytes(values)


def tokenizer_codec(content: bytes, source: object, max_normalized: int = MAX_NORMALIZED) -> Codec:
    """Make the codec of a tokenizer.json. source: its name in error messages.

    max_normalized: characters of a text that cannot be cut, once it is normalized.

    Raises `FolderError` that names the part which cannot be honoured.
    """
    file = read_tokenizer(content, source)
    if splits_characters(file):
        return Characters(file)
    steps = {step["type"] for step in steps_of(file.tokenizer.pre_tokenizer)}
    whole = not steps and type(file.tokenizer.model).__name__ in ("BPE", "Unigram")
    if not whole and not steps & {"ByteLevel", "Metaspace"}:
        try:
            spaces = separators(file.tokenizer, file.entries)
        except faults() as error:  # the library raises bare exceptions, and panics
            raise FolderError(
                f"{source} is not a usable tokenizer.json: {brief(error)}; save it by the "
                "tokenizers library again"
            ) from error
        if spaces:
            return Words(file, spaces, max_normalized)
    return Subwords(file, max_normalized)
