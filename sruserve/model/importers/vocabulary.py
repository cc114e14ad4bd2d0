"""Convert the vocabulary file of `--vocab` to that of a model folder."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import Split, WhitespaceSplit

from sruserve.model.errors import OptionError
from sruserve.model.files import read_regular
from sruserve.model.reader.vocabulary import word_tokenizer
from sruserve.model.text.byte_values import is_byte_list
from sruserve.model.text.characters import EVERY_CHARACTER
from sruserve.model.text.tokenizer_trial import check_tokenizer
from sruserve.model.text.vocabulary_files import BYTES_FILE, WORDS_FILE, tokenizer_codec

UNKNOWN_WORDS = ("<oov>", "<unk>", "<UNK>")
_SPECIAL = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")  # such as <unk> and [PAD]


def vocabulary(
    path: Path,
    size: int | None,
    lowercase: bool = False,
    warn: Callable[[str], None] = lambda _: None,
    reads_words: bool = False,
) -> dict[str, bytes]:
    """Return file name and content for a vocabulary of `size` entries, or raise `OptionError`.

    With a list of words without an entry for unknown words, the model refuses unknown words.

    lowercase: texts are put into lower case before they are read.
    warn: called with what may be wrong with the vocabulary.
    reads_words: a list is of words as a document reader splits a text into them.
    """
    if size is None:
        raise OptionError(
            "--vocab: the checkpoint has no embedding, so its inputs are features; omit --vocab"
        )
    data = _read(path, "the file of a vocabulary")
    content = _parsed(path, data)
    if isinstance(content, dict) and not _is_numbering(content):
        check_tokenizer(data, path)
        entries = tokenizer_codec(data, path).size
    else:
        content = _in_order(content)
        entries = len(content) if isinstance(content, list) else size
    if entries != size:
        raise OptionError(
            f"--vocab has {entries} entries, but the embedding has {size} rows; they must be equal"
        )
    if isinstance(content, dict):
        return {WORDS_FILE: _lowered(data) if lowercase else data}
    if is_byte_list(content):
        if lowercase:
            raise OptionError("--lowercase: a vocabulary of bytes has no case; omit it")
        return {BYTES_FILE: json.dumps(content).encode()}
    if not is_string_list(content) or len(set(content)) != len(content):
        raise OptionError(
            "--vocab must be a tokenizer.json, a JSON list of distinct words, characters or byte "
            "values, or a JSON object of words and their ids"
        )
    if not lowercase and _is_lower(content):
        warn(
            "no entry of --vocab has a capital letter, so words with capitals are unknown to the "
            "model: if the training put its texts into lower case, import with --lowercase"
        )
    if reads_words:
        return {WORDS_FILE: word_tokenizer(content, unknown_word(content), lowercase)}
    tokenizer = _tokenizer(content)
    if lowercase:
        tokenizer.normalizer = Lowercase()
    return {WORDS_FILE: tokenizer.to_str(pretty=False).encode()}


def unknown_word(entries: Sequence[str]) -> str:
    """The entry of a reader's unknown words; raises `OptionError` if there is none."""
    entry_of_unknown = next((entry for entry in UNKNOWN_WORDS if entry in entries), None)
    if entry_of_unknown is None:
        raise OptionError(
            f"the vocabulary has no entry for unknown words, one of {', '.join(UNKNOWN_WORDS)}; a "
            "reader needs it"
        )
    return entry_of_unknown


def check_known_words(files: dict[str, bytes]) -> None:
    """Raise `OptionError` for a vocabulary with an entry for unknown words.

    files: what `vocabulary` returns.
    """
    if WORDS_FILE not in files:
        return
    tokenizer = Tokenizer.from_buffer(files[WORDS_FILE])
    unknown = getattr(tokenizer.model, "unk_token", None)
    if unknown is not None and tokenizer.token_to_id(unknown) is not None:
        raise OptionError(
            f"--vocab: {unknown} would stand for unknown words, but the network reads the "
            "characters of each word: give this entry another name, so that texts with unknown "
            "words are refused"
        )


def _is_numbering(content: dict[str, Any]) -> bool:
    """Whether a JSON object maps words to ids."""
    return bool(content) and all(type(number) is int for number in content.values())


def _in_order(content: Any) -> Any:
    """The words of a numbering as a list in id order; anything else as it is."""
    if not isinstance(content, dict):
        return content
    words = sorted(content, key=content.__getitem__)
    if [content[word] for word in words] != list(range(len(words))):
        raise OptionError(
            f"--vocab must number its {len(words)} words from 0 to {len(words) - 1} without gaps"
        )
    return words


def _is_lower(entries: Sequence[str]) -> bool:
    """Whether entries have letters, but no capital ones; special entries do not count."""
    text = "".join(entry for entry in entries if not _SPECIAL.fullmatch(entry))
    return text != text.upper() and text == text.lower()


def _tokenizer(entries: Sequence[str]) -> Tokenizer:
    """The tokenizer of words, or of characters if each entry is one, besides special entries."""
    numbers = {entry: i for i, entry in enumerate(entries)}
    unknown = next((entry for entry in UNKNOWN_WORDS if entry in numbers), None)
    model = WordLevel(numbers) if unknown is None else WordLevel(numbers, unk_token=unknown)
    tokenizer = Tokenizer(model)
    ordinary = [entry for entry in entries if not _SPECIAL.fullmatch(entry)]
    if ordinary and all(len(entry) == 1 for entry in ordinary):
        tokenizer.pre_tokenizer = Split(Regex(EVERY_CHARACTER), "isolated")
        tokenizer.decoder = Fuse()
    else:
        tokenizer.pre_tokenizer = WhitespaceSplit()
    return tokenizer


def _lowered(data: bytes) -> bytes:
    """A tokenizer.json that puts texts into lower case before it does anything else."""
    tokenizer = Tokenizer.from_buffer(data)
    steps = [Lowercase()] if tokenizer.normalizer is None else [Lowercase(), tokenizer.normalizer]
    tokenizer.normalizer = steps[0] if len(steps) == 1 else Normalizers(steps)
    return bytes(tokenizer.to_str(pretty=False).encode())


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or raise `OptionError`."""
    return _parsed(path, _read(path, "a JSON file"))


def _read(path: Path, kind: str) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        advice = "" if isinstance(error, PermissionError) else f"; name {kind}"
        raise OptionError(f"cannot read {path}: {error.strerror}{advice}") from error


def _parsed(path: Path, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise OptionError(
            f"{path} is not valid JSON: {error}; correct the file, or write it again"
        ) from error


def is_string_list(content: Any) -> bool:
    """Whether a JSON value lists strings that UTF-8 can encode; JSON allows lone surrogates."""
    return isinstance(content, list) and all(
        isinstance(entry, str) and not re.search("[\ud800-\udfff]", entry) for entry in content
    )
