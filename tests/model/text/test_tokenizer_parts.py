"""Every part of a tokenizer.json is honoured, or the file is refused and the part named."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import (
    ByteLevel,
    Metaspace,
    Sequence,
    Split,
    UnicodeScripts,
    WhitespaceSplit,
)

from sruserve.model.errors import FolderError
from sruserve.model.text.codec import Codec, pieces_after, token_text
from sruserve.model.text.vocabulary_files import tokenizer_codec
from tests.model.text.trained_tokenizers import LLAMA_3, trained

Change = Callable[[Tokenizer], None]


def changed(kind: str, change: Change) -> Codec:
    """The codec of a trained tokenizer with another part."""
    tokenizer = Tokenizer.from_str(trained(kind).to_str())
    change(tokenizer)
    return tokenizer_codec(tokenizer.to_str().encode(), "tokenizer.json")


def part(name: str, value: Any) -> Change:
    return lambda tokenizer: setattr(tokenizer, name, value)


SUFFIX, WORDS = "suffixed", "word piece"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (part("decoder", decoders.CTC()), "decoder CTC"),
        (part("decoder", decoders.Strip(" ", 0, 1)), None),
        (part("decoder", decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)])),
         "Strip at the end"),
        (part("decoder", decoders.Sequence([decoders.Fuse(), decoders.Metaspace()])),
         "Metaspace after Fuse"),
        (part("decoder", decoders.Sequence([decoders.BPEDecoder(), decoders.ByteFallback()])),
         "BPEDecoder"),
        (lambda tokenizer: tokenizer.enable_padding(length=8), "padding"),
        (lambda tokenizer: tokenizer.enable_padding(pad_to_multiple_of=8), "padding"),
        (lambda tokenizer: tokenizer.enable_padding(), None),
        (lambda tokenizer: tokenizer.enable_truncation(8, strategy="only_second"), "truncation"),
        (lambda tokenizer: tokenizer.enable_truncation(0), "truncation"),
        (part("post_processor", processors.TemplateProcessing("$A $A", "$A $B", [])),
         "TemplateProcessing"),
        (part("post_processor", processors.TemplateProcessing("a " * 65 + "$A", None, [("a", 0)])),
         "adds 65 ids to a text"),
        (part("post_processor", processors.BertProcessing(("a", 999), ("b", 1))),
         "post-processor adds ids"),
    ],
)  # fmt: skip
def test_a_part_that_cannot_be_honoured_is_named(change: Change, named: str | None) -> None:
    if named is None:
        changed(WORDS, change)
        return
    with pytest.raises(FolderError, match=named):
        changed(WORDS, change)


@pytest.mark.parametrize(
    ("kind", "change", "named"),
    [
        ("metaspace first", part("normalizer", normalizers.Strip()), "normalizer Strip"),
        ("metaspace first", part("normalizer", normalizers.Replace("a b", "c")), "Replace"),
        ("metaspace first", part("normalizer", normalizers.Replace(Regex("a ?"), "c")), "Replace"),
        ("metaspace first", part("normalizer", normalizers.Prepend("x")), "normalizer Prepend"),
        ("unigram", part("pre_tokenizer", None), "model Unigram without a pre-tokenizer"),
        ("sentencepiece", part("pre_tokenizer", Metaspace(split=False)), "Metaspace"),
        ("byte level", part("pre_tokenizer", ByteLevel(use_regex=False)), "ByteLevel"),
        ("byte level", part("pre_tokenizer", Sequence([UnicodeScripts(), ByteLevel()])),
         "pre-tokenizer UnicodeScripts"),
        ("byte level",
         part("pre_tokenizer", Sequence([ByteLevel(), Metaspace(prepend_scheme="first")])),
         "Metaspace (first) after another one"),
        ("byte level", lambda tokenizer: tokenizer.add_tokens(["a b"]), "added token 'a b'"),
        ("byte level", lambda tokenizer: tokenizer.add_tokens([AddedToken("<m>", rstrip=True)]),
         "added token '<m>'"),
        ("byte level",
         lambda tokenizer: tokenizer.add_tokens([AddedToken(" <m>", single_word=True)]),
         "added token ' <m>'"),
        ("metaspace first",
         lambda tokenizer: tokenizer.add_tokens([AddedToken("\u2581<m>", single_word=True)]),
         "added token '\u2581<m>'"),
        ("llama", lambda tokenizer: tokenizer.add_tokens(["<m>"]), "added token '<m>'"),
        ("llama",
         part("model", BPE({"\u2581": 0, "a": 1, "a\u2581": 2}, [("a", "\u2581")], unk_token="a")),
         "entry 'a\u2581'"),
        ("llama", part("model", BPE({"\u2581": 0, "a": 1}, [], unk_token="a", ignore_merges=True)),
         "model BPE"),
        ("llama", part("model", BPE({"\u2581": 0, "a": 1}, [])), "model BPE"),
        (WORDS, lambda tokenizer: tokenizer.enable_truncation(8), "truncates texts to 8 ids"),
    ],
)  # fmt: skip
def test_a_part_that_may_change_ids_beside_a_cut_makes_texts_whole(
    kind: str, change: Change, named: str
) -> None:
    codec = changed(kind, change)
    assert codec.whole_because is not None
    assert named in codec.whole_because
    tokenizer = Tokenizer.from_str(trained(kind).to_str())
    change(tokenizer)
    text = "be a  far soul, is it?"
    tokenizer.no_truncation()
    assert codec.encode(text)[0].tolist() == tokenizer.encode(text).ids
    assert codec.encode(text * 9000)[0].tolist() == tokenizer.encode(text * 9000).ids


def test_a_tokenizer_without_a_decoder_has_the_one_that_its_marks_tell() -> None:
    for kind in ("byte level", "metaspace always", "llama", SUFFIX):
        codec = changed(kind, lambda tokenizer: setattr(tokenizer, "decoder", None))
        pieces = pieces_after(codec, -1)
        ids = trained(kind).encode("be a the").ids
        assert b"".join(pieces[i] for i in ids).decode().strip() == "be a the"


def test_a_prepended_space_may_follow_lower_case() -> None:
    parts = [
        normalizers.Lowercase(),
        normalizers.Prepend("\u2581"),
        normalizers.Replace(" ", "\u2581"),
    ]
    for order, whole in (parts, None), (parts[::-1], "normalizer Prepend"):
        codec = changed("llama", part("normalizer", normalizers.Sequence(order)))
        assert (codec.whole_because or "")[4:22] == (whole or "")
    codec = changed("llama", part("normalizer", normalizers.Sequence(parts)))
    first, word = codec.encode("How Far I", more=True)
    assert word == "I"
    second, _ = codec.encode("s", word)
    assert [*first, *second] == codec.encode("how far is")[0].tolist()


def test_a_suffix_puts_a_space_before_what_follows() -> None:
    codec = changed(SUFFIX, lambda tokenizer: None)
    be, b = (trained(SUFFIX).token_to_id(entry) for entry in ("be</w>", "b"))
    assert be is not None
    assert b is not None
    pieces = pieces_after(codec, be)
    assert [pieces[be], pieces[b], pieces[be]] == [b" be", b" b", b"be"]
    assert [token_text(codec, i) for i in (be, b)] == ["be ", "b"]


def test_a_frame_is_that_of_the_post_processor_and_the_truncation() -> None:
    tokens = [("[C]", 1), ("[S]", 2)]
    for processor in (
        processors.TemplateProcessing(
            single="[C] $A [S]", pair="[C] $A [S] $B [S]", special_tokens=tokens
        ),
        processors.BertProcessing(("[S]", 2), ("[C]", 1)),
        processors.RobertaProcessing(("[S]", 2), ("[C]", 1)),
        processors.Sequence(
            [processors.ByteLevel(), processors.BertProcessing(("[S]", 2), ("[C]", 1))]
        ),
    ):
        for direction in ("left", "right"):
            tokenizer = Tokenizer(WordLevel({"a": 0, "[C]": 1, "[S]": 2, "b": 3, "c": 4}))
            tokenizer.pre_tokenizer = WhitespaceSplit()
            tokenizer.post_processor = processor
            tokenizer.enable_truncation(4, direction=direction)
            frame = tokenizer_codec(tokenizer.to_str().encode(), "").frame
            assert frame is not None
            for text in ("a", "a b", "a b c"):
                ids = tokenizer.encode(text).ids
                own = [["a", "b", "c"].index(word) for word in text.split()]
                own = [[0, 3, 4][i] for i in own][frame.kept(len(own))]
                assert [*frame.prefix, *own, *frame.suffix] == ids


def test_entries_that_only_the_frame_adds_have_no_characters() -> None:
    tokenizer = Tokenizer(WordLevel({"a": 0, "[C]": 1}))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[C] $A", pair="$A $B", special_tokens=[("[C]", 1)]
    )
    assert tokenizer_codec(tokenizer.to_str().encode(), "").characters.tolist() == [2, 0]


def test_lower_cased_characters_have_the_places_of_the_text() -> None:
    tokenizer = Tokenizer.from_str(trained("characters").to_str())
    tokenizer.normalizer = normalizers.Lowercase()
    codec = tokenizer_codec(tokenizer.to_str().encode(), "")
    ids, places, _ = codec.locate("aİ B")
    assert ids.tolist() == tokenizer.encode("aİ B").ids
    assert places.tolist() == [[0, 1], [1, 2], [1, 2], [2, 3], [3, 4]]


def test_a_character_without_an_entry_is_named() -> None:
    content = json.loads(trained("characters").to_str())
    content["model"]["unk_token"] = "no entry"
    codec = tokenizer_codec(json.dumps(content).encode(), "")
    with pytest.raises(ValueError, match=r"'Q' \(at character 3"):
        codec.encode("is Q")


@pytest.mark.parametrize("character", ["\u200b", "\x07"], ids=["to a space", "to nothing"])
def test_a_text_is_not_cut_after_a_character_that_normalizers_make_white(character: str) -> None:
    steps = [normalizers.Nmt(), normalizers.Replace(Regex(" {2,}"), " ")]
    codec = changed("metaspace first", part("normalizer", normalizers.Sequence(steps)))
    text = f"be {character} a"
    first, word = codec.encode(text[:-1], more=True)
    second, _ = codec.encode(text[-1:], word)
    assert [*first, *second] == codec.encode(text)[0].tolist()


def test_words_after_an_expression_that_joins_marks_and_letters_are_read_with_them() -> None:
    words = {word: i for i, word in enumerate(("<unk>", "she", "said", '"', "hello", '"hello'))}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Sequence([Split(Regex(LLAMA_3), "isolated"), WhitespaceSplit()])
    codec = tokenizer_codec(tokenizer.to_str().encode(), "tokenizer.json")
    assert codec.encode('she said "hello')[0].tolist() == [1, 2, 3, 4]
    assert codec.encode('"hello said')[0].tolist() == [5, 2]


def test_an_added_token_whose_normalized_form_has_a_space_makes_texts_whole() -> None:
    def change(tokenizer: Tokenizer) -> None:
        tokenizer.normalizer = normalizers.Replace("_", " ")
        tokenizer.add_tokens(["a_b"])

    assert "added token" in (changed("byte level", change).whole_because or "")


def test_a_vocabulary_without_a_character_is_not_one_of_characters() -> None:
    tokenizer = Tokenizer(WordLevel({"<unk>": 0, "[PAD]": 1}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    codec = tokenizer_codec(tokenizer.to_str().encode(), "tokenizer.json")
    assert codec.encode("a b")[0].tolist() == [0, 0, 0]
    assert codec.whole_because
