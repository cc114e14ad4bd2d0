"""`--vocab`: lists of words and characters, numberings, and texts in lower case."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Strip
from tokenizers.pre_tokenizers import WhitespaceSplit

from sruserve.model.errors import FolderError
from sruserve.model.folder import Model, load_model
from sruserve.model.text.characters import Characters
from sruserve.model.text.words import Words
from tests.model.importers.running import imported, refused, run_import
from tests.model.importers.scripts import CLASSIFIER, WORDS, script_tensors

TENSORS = script_tensors("classify", CLASSIFIER)


def model_of(tmp_path: Path, vocab: Any, *arguments: str) -> Model:
    return imported(tmp_path, TENSORS, "classify", *arguments, options={}, vocab=vocab)


def ids(model: Model, text: str) -> list[int]:
    assert model.codec is not None
    result: list[int] = model.codec.encode(text)[0].tolist()
    return result


def test_a_list_of_characters_reads_each_of_them_and_white_space(tmp_path: Path) -> None:
    model = model_of(tmp_path, ["<unk>", " ", "é", "日"])
    assert isinstance(model.codec, Characters)
    assert ids(model, "é 日x\n") == [2, 1, 3, 0, 0]
    assert model.codec.pieces[3] == "日".encode()
    assert model.codec.characters.tolist() == [5, 1, 1, 1]
    refusing = model_of(tmp_path, ["a", " ", "é", "日"])
    with pytest.raises(ValueError, match="no 'x'"):
        ids(refusing, "ax")


def test_special_entries_do_not_make_a_list_of_characters_one_of_words(tmp_path: Path) -> None:
    assert ids(model_of(tmp_path, ["<pad>", "[UNK]", "a", "b"]), "ab") == [2, 3]
    assert isinstance(model_of(tmp_path, ["a", "b", "c", "words"]).codec, Words)


def test_a_numbering_of_words_is_a_vocabulary(tmp_path: Path) -> None:
    model = model_of(tmp_path, {"sat": 3, "cat": 2, "the": 1, "<oov>": 0})
    assert ids(model, "the dog sat") == [1, 0, 3]
    assert model.digest == model_of(tmp_path, WORDS).digest


@pytest.mark.parametrize("last", [4, 2, -1])
def test_a_numbering_with_gaps_is_refused(tmp_path: Path, last: int) -> None:
    vocab = {"<oov>": 0, "the": 1, "cat": 2, "sat": last}
    message = refused(tmp_path, TENSORS, "classify", options={}, vocab=vocab)
    assert "number its 4 words from 0 to 3 without gaps" in message


@pytest.mark.parametrize(
    ("vocab", "warned"),
    [
        (["<UNK>", "the", "cat", "sat"], True),
        (["<unk>", "a", "b", "c"], True),
        (["<unk>", "The", "cat", "sat"], False),
        (["<unk>", "1", "2", "3"], False),
        ([97, 98, 99, 100], False),
    ],
    ids=["words", "characters", "capitals", "digits", "bytes"],
)
def test_a_vocabulary_without_capitals_is_imported_with_a_warning(
    tmp_path: Path, vocab: Any, warned: bool
) -> None:
    files = {"options": {}, "vocab": vocab}
    result = run_import(tmp_path, TENSORS, "--task", "classify", **files)
    assert result.exit_code == 0
    assert ("import with --lowercase" in " ".join(result.stderr.split())) is warned
    if isinstance(vocab[0], str):
        result = run_import(tmp_path, TENSORS, "--task", "classify", "--lowercase", **files)
        assert result.exit_code == 0
        assert "warning" not in result.stderr


@pytest.mark.parametrize("kind", ["list", "characters", "tokenizer", "normalizer"])
def test_lowercase_puts_texts_into_lower_case(tmp_path: Path, kind: str) -> None:
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<oov>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    if kind == "normalizer":
        tokenizer.normalizer = Strip()
    vocab: Any = {"list": WORDS, "characters": ["<unk>", "t", "h", "e"]}.get(kind)
    vocab = vocab or json.loads(tokenizer.to_str())
    assert ids(model_of(tmp_path, vocab), "The")[0] == 0
    lowered = ids(model_of(tmp_path, vocab, "--lowercase"), "The")
    assert lowered == ([1, 2, 3] if kind == "characters" else [1])


def test_lowercase_without_a_text_is_refused(tmp_path: Path) -> None:
    assert "add --vocab" in refused(tmp_path, TENSORS, "classify", "--lowercase", options={})
    message = refused(
        tmp_path, TENSORS, "classify", "--lowercase", options={}, vocab=[97, 98, 99, 100]
    )
    assert "bytes has no case" in message


@pytest.mark.parametrize(("vocab", "file"), [(WORDS, "tokenizer"), ([97, 98, 99, 100], "bytes")])
def test_a_vocabulary_whose_file_is_missing_is_named(tmp_path: Path, vocab: Any, file: str) -> None:
    model_of(tmp_path, vocab)
    (tmp_path / f"out/{file}.json").unlink()
    with pytest.raises(FolderError, match=r"neither tokenizer\.json nor bytes\.json"):
        load_model(tmp_path / "out")
