"""The vocabularies of a translation system: files, and which of their ids are special."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from tokenizers import Tokenizer

from sruserve.model.config import explain
from sruserve.model.errors import OptionError
from sruserve.model.folder_files import SOURCE_FILE, TARGET_FILE
from sruserve.model.importers.options import known, shown
from sruserve.model.importers.vocabulary import vocabulary
from sruserve.model.text.vocabulary_files import WORDS_FILE, tokenizer_codec
from sruserve.model.translation.config import SideConfig

_NAMES = {
    "bos": ("<s>", "<bos>", "[BOS]"),
    "eos": ("</s>", "<eos>", "[EOS]"),
    "pad": ("<pad>", "<blank>", "[PAD]"),
    "unk": ("<unk>", "<UNK>", "[UNK]", "<oov>"),
}


def vocabularies(
    vocab: Path | None,
    target_vocab: Path | None,
    sizes: tuple[int, int],
    lowercase: bool,
    warn: Callable[[str], None],
) -> dict[str, bytes]:
    """Return the vocabulary files of a folder, by name.

    vocab: of both languages, or of the source if there is `target_vocab`. sizes: numbers of ids.

    Raises `OptionError`.
    """
    if vocab is None:
        if target_vocab is not None:
            raise OptionError("--target-vocab needs --vocab, the vocabulary of the source")
        return {}
    if target_vocab is None:
        if sizes[0] != sizes[1]:
            raise OptionError(
                f"the source has {sizes[0]} ids and the target {sizes[1]}, so each has a "
                "vocabulary of its own: add --target-vocab"
            )
        return {WORDS_FILE: _words(vocab, sizes[0], lowercase, warn)}
    return {
        SOURCE_FILE: _words(vocab, sizes[0], lowercase, warn),
        TARGET_FILE: _words(target_vocab, sizes[1], False, warn),
    }


def side_config(
    options: Any, size: int, content: bytes | None, side: str, assume: Callable[[str], None]
) -> SideConfig:
    """Return the config of one side.

    options: `source` or `target` of `--options`: bos, eos, pad and unk, as ids or as entries.
    content: its vocabulary, which tells special ids by their usual names; None without one. Only
        the target's bos and eos are taken from it: whether a source had them, training decided.
    assume: called with what the vocabulary tells.

    Raises `OptionError`.
    """
    if not isinstance(options, dict):
        raise OptionError(f"--options: {side} is {shown(options)}; it must be an object of ids")
    stated = known(options, tuple(_NAMES))
    tokenizer = None if content is None else Tokenizer.from_buffer(content)
    fields = {name: _id_of(value, tokenizer, f"{side}.{name}") for name, value in stated.items()}
    special = dict(_special_ids(tokenizer)) if tokenizer is not None else {}
    for name, token in special.items():
        if name in fields or (side == "source" and name in ("bos", "eos")):
            continue
        fields[name] = token
        assume(f"{side} {name} {token}")
    if side == "target" and (missing := [name for name in ("bos", "eos") if name not in fields]):
        raise OptionError(
            f'"{missing[0]}" of the target is not stored in a state dict: pass "target": '
            '{"bos": …, "eos": …} in --options, ids or entries of the vocabulary'
        )
    try:
        return SideConfig(vocab_size=size, **fields)
    except ValidationError as error:
        raise OptionError(f"--options: {side}: {explain(error)}") from error


def _words(path: Path, size: int, lowercase: bool, warn: Callable[[str], None]) -> bytes:
    files: Mapping[str, bytes] = vocabulary(path, size, lowercase, warn)
    if WORDS_FILE not in files:
        raise OptionError("--vocab: a translation system has no vocabulary of bytes; use words")
    if tokenizer_codec(files[WORDS_FILE], path).frame is not None:
        warn(
            f"{path} adds ids around a text or truncates it, which a translation system does not "
            'take from there: state bos and eos under "source" and "target" in --options'
        )
    return files[WORDS_FILE]


def _id_of(value: Any, tokenizer: Tokenizer | None, name: str) -> int | None:
    """Return the id that an option names."""
    if value is None or type(value) is int:
        return value
    token = tokenizer.token_to_id(value) if tokenizer and isinstance(value, str) else None
    if token is None:
        raise OptionError(
            f"--options: {name} is {shown(value)}; it must be an id, or an entry of the vocabulary"
        )
    return int(token)


def _special_ids(tokenizer: Tokenizer) -> Iterator[tuple[str, int]]:
    """Yield the special ids that a vocabulary tells by their names."""
    for name, entries in _NAMES.items():
        for entry in entries:
            if (token := tokenizer.token_to_id(entry)) is not None:
                yield name, token
                break
