"""Vocabularies: chunks of a text give the ids of the whole."""

import base64
import json
import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE, WordLevel, WordPiece
from tokenizers.normalizers import BertNormalizer, Strip
from tokenizers.pre_tokenizers import (
    BertPreTokenizer,
    CharDelimiterSplit,
    PreTokenizer,
    Split,
    Whitespace,
    WhitespaceSplit,
)

from sruserve.model.errors import FolderError, TextError
from sruserve.model.text import words as words_module
from sruserve.model.text.byte_values import Bytes
from sruserve.model.text.codec import Codec
from sruserve.model.text.normalizers import growth, work
from sruserve.model.text.vocabulary_files import make_codec, tokenizer_codec
from sruserve.model.text.words import Words


@pytest.fixture(scope="module")
def words() -> Codec:
    vocabulary = {
        w: i for i, w in enumerate(["<oov>", "how", "far", "is", "it", "?", ".", "'", "s"])
    }
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<oov>"))
    tokenizer.pre_tokenizer = Whitespace()
    return tokenizer_codec(tokenizer.to_str().encode(), "")


def codec_of(folder: Path) -> Codec | None:
    return make_codec({file.name: file.read_bytes() for file in folder.iterdir()}, folder)


@given(
    text=st.text("howfarist? .'\t\n\u3000é", max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=5),
)
def test_any_chunks_of_a_text_give_the_ids_of_the_whole(
    words: Words, text: str, cuts: list[int]
) -> None:
    whole, rest = words.encode(text)
    assert rest == ""
    ids: list[int] = []
    word = ""
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    chunks = [text[a:b] for a, b in pairwise(edges)]
    for index, chunk in enumerate(chunks):
        piece_ids, word = words.encode(chunk, word, more=index + 1 < len(chunks))
        ids += piece_ids.tolist()
    assert ids == whole.tolist()
    assert word == ""


@given(
    text=st.text("howfarist? .'\t\n\u3000é", max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=5),
)
def test_places_are_those_of_the_whole_text_and_ids_those_of_encode(
    words: Words, text: str, cuts: list[int]
) -> None:
    every_byte = Bytes(list(range(256)))
    for codec in (words, every_byte):
        ids, places, rest = codec.locate(text)
        assert (ids.tolist(), rest) == (codec.encode(text)[0].tolist(), "")
        edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
        piece_ids: list[list[int]] = []
        word = ""
        for begin, end in pairwise(edges):
            _, part, word = codec.locate(text[begin:end], word, more=end < len(text))
            piece_ids += (part + begin).tolist()
        assert piece_ids == places.tolist()


@given(
    text=st.text("howfarist? .'\t\n\u3000é", max_size=40),
    word=st.text("how'?", max_size=4),
    more=st.booleans(),
    max_characters=st.integers(1, 40),
)
def test_parts_of_a_text_give_the_ids_and_places_of_the_whole(
    words: Words, text: str, word: str, more: bool, max_characters: int
) -> None:
    for codec in (words, Bytes(list(range(256)))):
        parts = codec.parts(text, max_characters) or [""]
        assert "".join(parts) == text
        ids, places, rest, before, begin = [], [], "", word, 0
        for number, part in enumerate(parts, 1):
            assert rest == ""
            piece_ids, located, rest = codec.locate(part, before, more and number == len(parts))
            encoded, _ = codec.encode(part, before, more and number == len(parts))
            assert encoded.tolist() == piece_ids.tolist()
            ids += piece_ids.tolist()
            places += (located + begin).tolist()
            before, begin = "", begin + len(part)
        whole, located, left = codec.locate(text, word, more)
        assert (ids, places, rest) == (whole.tolist(), located.tolist(), left)


# what `str.split` splits at, and separators of one kind of tokenizers only
WHITE = " \t\n\v\f\r\x1c\x1d\x1e\x1f\x85\xa0\u3000"


@pytest.fixture(scope="module", params=["all spaces", "one space"])
def split_words(request: pytest.FixtureRequest) -> tuple[Tokenizer, Words]:
    """A tokenizer that splits at white space, or at one kind of it, and its vocabulary."""
    tokenizer = Tokenizer(WordLevel({"<oov>": 0, "a": 1, "b": 2, "é": 3}, unk_token="<oov>"))
    all_spaces = request.param == "all spaces"
    tokenizer.pre_tokenizer = WhitespaceSplit() if all_spaces else CharDelimiterSplit(" ")
    codec = tokenizer_codec(tokenizer.to_str().encode(), "")
    assert isinstance(codec, Words)
    return tokenizer, codec


@given(texts=st.lists(st.text(f"aabé{WHITE}", max_size=8), max_size=6))
def test_texts_have_the_ids_of_the_tokenizer_alone_and_together(
    split_words: tuple[Tokenizer, Words], texts: list[str]
) -> None:
    tokenizer, codec = split_words
    expected = [tokenizer.encode(text).ids for text in texts]
    assert [codec.encode(text)[0].tolist() for text in texts] == expected
    assert [ids.tolist() for ids in codec.encode_texts(texts)] == expected


def test_long_texts_have_the_same_ids_beside_short_ones(words: Words) -> None:
    texts = ["how far", "is it ? " * 1000, ""]
    assert [*map(list, words.encode_texts(texts))] == [[1, 2], [3, 4, 5] * 1000, []]


def test_texts_of_characters_and_bytes_have_their_ids_together() -> None:
    texts = ["ab", "", "b"]
    together = Bytes([97, 98]).encode_texts(texts)
    assert [ids.tolist() for ids in together] == [[0, 1], [], [1]]
    assert [together[index].tolist() for index in range(-3, 3)] == [[0, 1], [], [1]] * 2
    with pytest.raises(IndexError):
        together[3]


def test_a_place_is_that_of_a_word_or_of_a_bytes_character(words: Words) -> None:
    text = "how  far, Denver?"
    words_at_places = [text[begin:end] for begin, end in words.locate(text)[1].tolist()]
    assert words_at_places == ["how", "far", ",", "Denver", "?"]
    assert words.locate("r", "fa")[1].tolist() == [[-2, 1]]
    codec = Bytes([98, 97, 0xC3, 0xA9])
    assert codec.locate("aéb")[1].tolist() == [[0, 1], [1, 2], [1, 2], [2, 3]]


def without_unknown(path: Path, pre_tokenizer: PreTokenizer | None) -> Path:
    tokenizer = Tokenizer(WordLevel({"how": 0, "far": 1, "is": 2}))
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.mark.parametrize("times", [1, 1000], ids=["short", "long"])
def test_a_word_that_has_no_entry_is_named(tmp_path: Path, times: int) -> None:
    codec = codec_of(without_unknown(tmp_path, Whitespace()))
    assert codec is not None
    assert codec.encode("how far " * times)[0].tolist() == [0, 1] * times
    for read in (codec.encode, codec.locate):
        with pytest.raises(TextError, match=r"'Denver'.*unknown words"):
            read("how far " * times + "Denver")


def test_a_vocabulary_without_an_entry_for_unknown_words_must_split_too(tmp_path: Path) -> None:
    with pytest.raises(FolderError):
        codec_of(without_unknown(tmp_path, None))


def test_an_unfinished_word_is_held_back(words: Words) -> None:
    ids, word = words.encode("how fa", more=True)
    assert (ids.tolist(), word) == ([1], "fa")
    ids, word = words.encode("r is", "fa", more=True)
    assert (ids.tolist(), word) == ([2], "is")


def test_a_word_without_end_is_refused(words: Words) -> None:
    with pytest.raises(TextError, match="white space"):
        words.encode("a" * 70_000, more=True)


def test_words_are_written_with_a_space_before_them(words: Words) -> None:
    assert words.pieces[1] == b" how"
    assert words.characters.tolist()[:3] == [6, 4, 4]


def test_a_tokenizer_that_joins_across_white_space_reads_whole_texts() -> None:
    tokenizer = Tokenizer(WordLevel({"<oov>": 0, "cd": 1, " cd": 2}, unk_token="<oov>"))
    tokenizer.pre_tokenizer = Split(" ", "merged_with_next")
    codec = tokenizer_codec(tokenizer.to_str().encode(), "")
    assert codec.encode("cd cd")[0].tolist() == [1, 2]
    assert "pre-tokenizer Split" in str(codec.whole_because)


@pytest.mark.parametrize("entry", ["Los Angeles", "Los\tAngeles", "1 000"])
def test_an_entry_across_white_space_is_read_however_late_it_stands(entry: str) -> None:
    words = ["<oov>", *map(str, range(200)), "Los", "Angeles", entry]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<oov>"))
    tokenizer.pre_tokenizer = Split(Regex(r"\d+ \d+|Los\sAngeles|\S+"), "removed", invert=True)
    codec = tokenizer_codec(tokenizer.to_str().encode(), "")
    assert codec.encode(f"1 x {entry} 2")[0].tolist() == tokenizer.encode(f"1 x {entry} 2").ids
    assert codec.whole_because
    tokenizer.pre_tokenizer = WhitespaceSplit()
    codec = tokenizer_codec(tokenizer.to_str().encode(), "")
    assert codec.encode(f"1 {entry} 2")[0].tolist() == tokenizer.encode(f"1 {entry} 2").ids
    assert codec.whole_because is None


@pytest.mark.parametrize("added", ["    ", "   ", "\n    ", " \n", "    x"])
def test_an_added_token_of_white_space_is_read(added: str) -> None:
    vocabulary = {"<oov>": 0} | {f"w{number}": number for number in range(1, 200)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<oov>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_tokens([added])
    codec, text = tokenizer_codec(tokenizer.to_str().encode(), ""), f"w1{added}w2 w3 {added} w4"
    ids = tokenizer.encode(text).ids
    assert codec.encode(text)[0].tolist() == ids
    assert 200 in ids


def test_a_character_that_is_deleted_separates_no_words_whose_ids_it_does_not_change() -> None:
    vocabulary = {letter: number for number, letter in enumerate("abcdefghij\t ")}
    tokenizer = Tokenizer(BPE(vocabulary, []))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), WhitespaceSplit()
    words = tokenizer_codec(tokenizer.to_str().encode(), "")
    assert isinstance(words, Words)
    assert "\v" not in words._spaces
    assert words.encode("ab\vcd e")[0].tolist() == [0, 1, 2, 3, 4]


def test_a_tokenizer_that_strips_what_separates_no_words_reads_whole_texts() -> None:
    vocabulary = {"<oov>": 0, "ab": 1, "cd": 2, "\tcd": 3}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<oov>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = Strip(), CharDelimiterSplit(" ")
    codec = tokenizer_codec(tokenizer.to_str().encode(), "")
    assert codec.encode("ab \tcd\t")[0].tolist() == [1, 3]
    assert codec.whole_because


def test_the_dropout_of_a_training_is_not_used() -> None:
    vocabulary = {"a": 0, "b": 1, "ab": 2}
    tokenizer = Tokenizer(BPE(vocabulary, [("a", "b")], dropout=1.0))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    assert tokenizer_codec(tokenizer.to_str().encode(), "").encode("ab ab")[0].tolist() == [2, 2]


@pytest.mark.parametrize("space", " \t\n\v\f\r")
def test_a_character_that_the_tokenizer_deletes_separates_no_words(space: str) -> None:
    vocabulary = {"[UNK]": 0, "page": 1, "one": 2, "new": 3, "##new": 4}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    words, text = tokenizer_codec(tokenizer.to_str().encode(), ""), f"page one{space}new "
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == ([1, 2, 4] if space in "\v\f" else [1, 2, 3])
    assert words.encode(text)[0].tolist() == ids
    assert words.encode(text * 1000)[0].tolist() == ids * 1000
    assert words.locate(text)[0].tolist() == ids
    for cut in range(len(text)):
        first, word = words.encode(text[:cut], more=True)
        second, _ = words.encode(text[cut:], word)
        assert [*first, *second] == ids


@pytest.mark.parametrize("added", [False, True], ids=["word", "added token"])
def test_an_entry_that_replies_cannot_repeat_is_refused(tmp_path: Path, added: bool) -> None:
    for size in (1024, 1026):
        entry = size // 2 * "é"
        tokenizer = Tokenizer(WordLevel({"a": 0} if added else {"a": 0, entry: 1}, unk_token="a"))
        tokenizer.pre_tokenizer = Whitespace()
        if added:
            tokenizer.add_tokens([entry])
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        if size == 1024:
            assert codec_of(tmp_path)
            continue
        with pytest.raises(FolderError, match=r"entry 1 \('é{40}'…\) has 1,026 bytes"):
            codec_of(tmp_path)


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FolderError, match="tokenizer"):
        codec_of(tmp_path)


def test_a_tokenizer_that_numbers_a_word_twice_is_refused(tmp_path: Path) -> None:
    content = with_steps().decode().replace('"a": 1', '"a": 1, "a": 2', 1)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(FolderError, match="contains the name 'a' twice"):
        codec_of(tmp_path)


def with_steps(*normalizers: dict[str, Any], split: dict[str, Any] | None = None) -> bytes:
    """A tokenizer.json with these normalizers, and a pre-tokenizer before its own."""
    words = Tokenizer(WordLevel({"<oov>": 0, "a": 1, "b": 2}, unk_token="<oov>"))
    words.pre_tokenizer = Whitespace()
    content = json.loads(words.to_str())
    content["normalizer"] = {"type": "Sequence", "normalizers": list(normalizers)}
    if split is not None:
        before = {"type": "Sequence", "pretokenizers": [split]}
        content["pre_tokenizer"] = before | {"pretokenizers": [before, content["pre_tokenizer"]]}
    return json.dumps(content).encode()


def replace(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def charsmap(*replacements: str) -> dict[str, Any]:
    data = bytes([4, 0, 0, 0, 0, 0, 0, 0]) + "\0".join(replacements).encode()
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


LONGER = replace(16 * "a", String="a")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


@pytest.mark.parametrize(
    "content",
    [
        with_steps(LONGER, LONGER, LONGER),
        with_steps(*[LONGER] * 60),  # it would never be built
        with_steps(LONGER, {"type": "Sequence", "normalizers": [LONGER, LONGER]}),
        with_steps(*[{"pattern": {"String": "a"}, "content": 16 * "a"}] * 3),  # typed by its fields
        with_steps(replace(1002 * "é", String="éé"), replace("bb", String="b")),
        with_steps(replace(1000 * "a", Regex="b*")),
        with_steps(replace(1000 * "a", String="")),
        with_steps({"type": "Prepend", "prepend": 1000 * "a"}),
        with_steps({"type": "NFKD"}, {"type": "NFKC"}, {"type": "NFC"}, {"type": "NFD"}),
        with_steps(*[{"type": "BertNormalizer"}] * 5),
        with_steps(charsmap("b", 1001 * "a", "")),
        with_steps(split={"type": "Sequence", "pretokenizers": [BYTES] * 10}),
        with_steps(LONGER, LONGER | {"normalizers": []}, LONGER | {"processors": [{}]}),
        with_steps(*[{"type": kind, "normalizers": []} for kind in ("NFKD", "NFKC", "NFC", "NFD")]),
    ],
    ids=[
        "three", "many", "nested", "untyped", "bytes", "regex", "nothing", "prepend", "forms",
        "bert", "charsmap", "pre-tokenizers", "other fields", "no fields",
    ],
)  # fmt: skip
def test_normalizers_that_could_lengthen_a_text_beyond_the_bound_are_refused(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(FolderError, match=r"its normalizers \(.*times as long"):
        codec_of(tmp_path)


@pytest.mark.parametrize("step", [["x" * 5000], [[{"type": "Prepend", "prepend": "x" * 5000}]]])
def test_steps_that_the_library_reads_from_lists_are_refused(step: list[Any]) -> None:
    with pytest.raises(FolderError, match=r"for a step; write an object with a type"):
        tokenizer_codec(with_steps(step), "")  # type: ignore[arg-type]


@pytest.mark.parametrize("table", ["/////w==", "BAAAAP////9hAGIA"], ids=["read", "used"])
def test_a_file_that_makes_the_library_panic_is_named(tmp_path: Path, table: str) -> None:
    content = with_steps({"type": "Precompiled", "precompiled_charsmap": table})
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(
        FolderError, match=rf"{tmp_path}/tokenizer.json is not a usable tokenizer.json"
    ):
        codec_of(tmp_path)


def test_a_refusal_quotes_only_a_part_of_a_long_value(tmp_path: Path) -> None:
    content = json.loads(with_steps()) | {"version": "1.0" * 50_000}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(FolderError, match=r"is not a usable tokenizer\.json: .*version") as caught:
        codec_of(tmp_path)
    assert len(str(caught.value)) < 1000


SPACES = replace(" ", Regex=" {2,}")


@pytest.mark.parametrize(
    "normalizers",
    [
        [],
        [LONGER, replace("b", String="aaaa")],
        [{"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
          "strip_accents": None, "lowercase": True}],
        [{"type": "NFC"}, replace(" ", Regex=r"\s+"), {"type": "Lowercase"}],
        [replace('"', String="``"), {"type": "NFKD"}, {"type": "StripAccents"},
         {"type": "Lowercase"}, SPACES],
    ],
    ids=["none", "longer", "bert", "clip", "albert"],
)  # fmt: skip
def test_ordinary_normalizers_are_taken(normalizers: list[dict[str, Any]]) -> None:
    assert tokenizer_codec(with_steps(*normalizers), "").encode("a")[0].size


def test_sentencepieces_normalizers_are_ordinary() -> None:
    longest = "\N{ARABIC LIGATURE SALLALLAHOU ALAYHE WASALLAM}"
    table = charsmap(unicodedata.normalize("NFKC", longest))
    assert growth(json.loads(with_steps({"type": "NFKD"}, table, SPACES))) == 11 * 33


SPLIT: dict[str, Any] = {"type": "Split", "behavior": "Isolated", "invert": False}
WORD_PIECE = {
    "type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100, "vocab": {"a": 0},
}  # fmt: skip
BERT = {"type": "BertNormalizer"}


def with_model(*normalizers: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """The content of a tokenizer.json with WordPiece, or another model."""
    content: dict[str, Any] = json.loads(with_steps(*normalizers))
    return content | {"model": {**WORD_PIECE, **changed}}


def with_split(pattern: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(with_steps(split=SPLIT | {"pattern": {"Regex": pattern}}))
    return content


def test_the_work_of_ordinary_tokenizers_is_little() -> None:
    demo = Path(words_module.__file__).parents[2] / "demo/question-type/tokenizer.json"
    ordinary = [json.loads(demo.read_bytes()), json.loads(with_steps()), with_model(BERT)]
    patterns = [" {2,}", r"\s+", r"\w+|[^\w\s]", "``|''|[“”„«»]", r"[\s\p{Z}\p{C}]", r"\.\p{Han}"]
    for content in (*ordinary, *map(with_split, patterns)):
        assert 1 <= work(content) < 512
    assert Bytes([0]).work == 1


@pytest.mark.parametrize(
    "content",
    [
        with_model(max_input_chars_per_word=10**9),
        with_model(BERT, max_input_chars_per_word=1000),
        with_model(replace(900 * "a", String="a")),
        with_model(continuing_subword_prefix="#" * 100_000),
        with_model(type="Unigram", unk_id=0, vocab=[["a" * 1024, 0.0]]),
        with_model(*[replace("b", String="a")] * 200),
        with_model() | {"post_processor": {"type": "Sequence", "processors": [
            {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}] * 100}]}},
        *map(with_split, [
            "(a|aa)+$", "a*a*b", "a+b", "(?:a+)+", r"(a)\1", "a{9999}", "a++b", "[a[b]]+", "a|", "",
            "a" * 10_000,
        ]),
    ],
)  # fmt: skip
def test_expensive_work_of_a_tokenizer_is_counted(content: dict[str, Any]) -> None:
    assert work(content) > 512


ACROSS = replace(".", String=" .")  # so that texts are read as a whole


@pytest.mark.parametrize("across", [[], [ACROSS]], ids=["words", "whole texts"])
def test_a_text_without_cuts_that_normalizers_make_too_long_is_refused(
    across: list[dict[str, Any]],
) -> None:
    codec = tokenizer_codec(with_steps(LONGER, *across), "", max_normalized=16 * 100)
    assert isinstance(codec, Words) == (not across)
    assert len(codec.encode("b " * 200)[0]) == 200
    for text in ("b" * 1600, "a" * 100):  # only what they do make longer counts
        assert len(codec.encode(text)[0]) == 1
    for read in (codec.encode, codec.locate):
        with pytest.raises(TextError, match=r"101 characters, and the tokenizer may make more"):
            read("a" * 101)


@pytest.mark.parametrize("across", [[], [ACROSS]], ids=["words", "whole texts"])
def test_characters_of_several_bytes_that_become_as_many_of_one_byte_count_as_these(
    across: list[dict[str, Any]],
) -> None:
    shortened = replace("aaaa", String="\N{GRINNING FACE}")
    codec = tokenizer_codec(with_steps(shortened, *across), "", max_normalized=16 * 100)
    assert isinstance(codec, Words) == (not across)
    assert len(codec.encode("\N{GRINNING FACE}" * 400)[0]) == 1
    for read in (codec.encode, codec.locate):
        with pytest.raises(TextError, match=r"401 characters, and the tokenizer may make more"):
            read("\N{GRINNING FACE}" * 401)


def test_a_text_is_not_normalized_under_the_interpreter_by_a_slow_expression() -> None:
    slow = replace("b" * 15, Regex="a{0,5}(?!a|\\z)")  # hours, if there were more of these
    codec = tokenizer_codec(with_steps(slow), "", max_normalized=16 * 100)
    assert "regular expression" in str(codec.whole_because), "to cut would normalize, too"
    for read in (codec.encode, codec.locate):
        assert len(read("b" * 100)[0]) == 1
        with pytest.raises(TextError, match=r"101 characters, and the tokenizer may make more"):
            read("b" * 101)


def test_bytes_are_ranked_as_listed() -> None:
    codec = Bytes([98, 97, 0xC3, 0xA9])
    assert codec.encode("abé")[0].tolist() == [1, 0, 2, 3]
    assert codec.characters.tolist() == [1, 1, 1, 0]


def test_a_character_outside_the_vocabulary_is_named() -> None:
    with pytest.raises(TextError, match=r"'é'.*byte 2 of the text"):
        Bytes([97, 98]).encode("abéa")


@pytest.mark.parametrize("values", [[1, 1], [256], [-1], ["a"], [True], [], {"a": 1}])
def test_a_list_that_is_no_list_of_bytes_is_refused(tmp_path: Path, values: object) -> None:
    (tmp_path / "bytes.json").write_text(json.dumps(values))
    with pytest.raises(FolderError, match="bytes"):
        codec_of(tmp_path)
