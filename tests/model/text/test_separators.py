"""Which tokenizers read words by themselves, and what becomes of those that do not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import normalizers as norm
from tokenizers import pre_tokenizers as pre
from tokenizers.models import WordLevel

import sruserve
from sruserve.model.text.codec import Codec
from sruserve.model.text.vocabulary_files import tokenizer_codec
from sruserve.model.text.words import Words

# More entries at both ends than those that are tried: only the proof decides.
ENTRIES = (
    "<unk>", *(f"x{i}" for i in range(100)),
    "a", "b", "do", "n't", "don't", "new", "york", "newyork", "new york", "3", "5", "35", ".",
    "b.", "<", "br", "br/", "/>", "(", ")", "<br />",
    *(f"y{i}" for i in range(100)),
)  # fmt: skip


def tokenizer(normalizer: Any = None, split: Any = None, *added: AddedToken) -> Tokenizer:
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(ENTRIES)}, unk_token="<unk>"))
    if normalizer is not None:
        words.normalizer = normalizer
    words.pre_tokenizer = split or pre.WhitespaceSplit()
    words.add_tokens(list(added))
    return words


def codec(words: Tokenizer) -> Codec:
    return tokenizer_codec(words.to_str().encode(), "tokenizer.json")


ACROSS: dict[str, tuple[Tokenizer, str]] = {
    "text with a space": (tokenizer(norm.Replace(" n't", "n't")), "do n't do"),
    "mark": (tokenizer(norm.Replace(" .", ".")), "a b . a"),
    "tag": (tokenizer(norm.Replace("<br />", " ")), "a<br /><br />b"),
    "class": (tokenizer(norm.Replace(Regex("<[^>]+>"), "")), "a <a b> b"),
    "look-around": (tokenizer(norm.Replace(Regex(r"(?<=\d) (?=\d)"), "")), "a 3 5 b"),
    "two words": (tokenizer(norm.Replace("new york", "newyork")), "a new york b"),
    "begin": (tokenizer(norm.Replace(Regex("^a"), "b")), "a a a"),
    "end": (tokenizer(norm.Replace(Regex("a$"), "b")), "a a a"),
    "deleted": (tokenizer(norm.Replace(Regex(r"\s+"), "")), "new york"),
    "prefix": (tokenizer(norm.Prepend("b")), "a a"),
    "not before": (tokenizer(None, pre.Split(Regex(r"\s+(?!york)"), "removed")), "a new york b"),
    "matched words": (
        tokenizer(None, pre.Split(Regex(r"new york|\S+"), "removed", invert=True)),
        "a new york b",
    ),
    "pairs": (
        tokenizer(
            None,
            pre.Sequence([pre.Split(Regex(r"[\s\S]{2}"), "isolated"), pre.WhitespaceSplit()]),
        ),
        "a 35 b.",
    ),
    "letters around": (
        tokenizer(None, pre.Sequence([pre.Split("w y", "isolated"), pre.WhitespaceSplit()])),
        "a new york b",
    ),
    "added token": (tokenizer(None, None, AddedToken("new york")), "a new york b"),
    "added mark": (
        tokenizer(None, pre.CharDelimiterSplit(" "), AddedToken("<m>", lstrip=True)),
        "a\u00a0 <m> b",
    ),
}


@pytest.mark.parametrize("name", ACROSS)
def test_a_tokenizer_that_looks_across_white_space_gets_its_own_ids(name: str) -> None:
    words, text = ACROSS[name]
    ids = words.encode(text, add_special_tokens=False).ids
    assert codec(words).encode(text)[0].tolist() == ids
    assert codec(words).locate(text)[0].tolist() == ids
    by_word = [i for word in text.split(" ") for i in words.encode(word).ids]
    assert ids != by_word, "the case shows nothing"


@pytest.mark.parametrize("name", ACROSS)
def test_its_chunks_are_cut_only_where_no_id_changes(name: str) -> None:
    words, text = ACROSS[name]
    served, ids = codec(words), words.encode(text, add_special_tokens=False).ids
    for cut in range(len(text)):
        first, word = served.encode(text[:cut], more=True)
        second, _ = served.encode(text[cut:], word)
        assert [*first, *second] == ids


BY_WORDS: dict[str, Callable[[], Tokenizer]] = {
    "characters": lambda: tokenizer(norm.Sequence([norm.NFKC(), norm.Lowercase()])),
    "marks": lambda: tokenizer(norm.Replace(Regex("[.,!?]"), "")),
    "white space": lambda: tokenizer(norm.Replace(Regex(r"\s+"), " ")),
    "a mark into a space": lambda: tokenizer(norm.Replace("_", " ")),
    "ends": lambda: tokenizer(norm.Strip()),
    "bert": lambda: tokenizer(norm.BertNormalizer(), pre.BertPreTokenizer()),
    "tokens": lambda: tokenizer(None, pre.Split(Regex(r"\w+|[^\w\s]"), "removed", invert=True)),
    "spaces": lambda: tokenizer(None, pre.Split(" ", "removed")),
    "behind words": lambda: tokenizer(
        None, pre.Sequence([pre.WhitespaceSplit(), pre.Split(Regex("^a|b$"), "isolated")])
    ),
    "added": lambda: tokenizer(None, None, AddedToken("<m>", lstrip=True, rstrip=True)),
}


@pytest.mark.parametrize("name", BY_WORDS)
def test_a_tokenizer_that_is_proven_to_read_words_is_read_by_words(name: str) -> None:
    words = BY_WORDS[name]()
    served = codec(words)
    assert isinstance(served, Words)
    text = "a_b new  york. <m> 35"
    assert served.encode(text)[0].tolist() == words.encode(text, add_special_tokens=False).ids


def test_the_bundled_classifier_is_read_by_words() -> None:
    folder = Path(sruserve.__file__).parent / "demo/question-type"
    content = (folder / "tokenizer.json").read_bytes()
    assert isinstance(tokenizer_codec(content, "tokenizer.json"), Words)


def test_a_word_that_no_whole_text_may_have_is_refused() -> None:
    words = Tokenizer(WordLevel({"a": 0, "b": 1}))
    words.normalizer, words.pre_tokenizer = norm.Replace(" .", "."), pre.WhitespaceSplit()
    with pytest.raises(ValueError, match="no entry for a part of the text"):
        codec(words).encode("a c")
