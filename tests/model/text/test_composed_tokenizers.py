"""Tokenizers of any parts: if their texts may be cut, chunks give the ids of the whole."""

from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import normalizers as norm
from tokenizers import pre_tokenizers as pre
from tokenizers.models import BPE, Unigram, WordLevel, WordPiece

from sruserve.model.errors import FolderError
from sruserve.model.text.vocabulary_files import tokenizer_codec
from tests.model.text.trained_tokenizers import LLAMA_3

MARK = "\u2581"
LETTERS = [
    "a",
    "b",
    "A",
    "1",
    "2",
    ".",
    "'",
    "s",
    "é",
    "e",
    "\u0301",
    " ",
    MARK,
    "\n",
    "\t",
    "Ġ",
    "ﬁ",
]
TEXTS = st.lists(
    st.sampled_from([*LETTERS, " ", " ", "  ", "<m>", " <m>", "\u3000", "\x00", "\u200b", "日"]),
    max_size=14,
).map("".join)
NORMALIZERS: dict[str, Any] = {
    "nfc": norm.NFC(), "nfd": norm.NFD(), "nfkc": norm.NFKC(), "nfkd": norm.NFKD(),
    "lower": norm.Lowercase(), "accents": norm.StripAccents(), "nmt": norm.Nmt(),
    "bert": norm.BertNormalizer(), "strip": norm.Strip(), "right": norm.Strip(left=False),
    "prepend": norm.Prepend(MARK), "mark": norm.Replace(" ", MARK), "space": norm.Replace(" ", " "),
    "runs": norm.Replace(Regex(" {2,}"), " "), "marked runs": norm.Replace(Regex(" {2,}"), MARK),
    "white": norm.Replace(Regex(r"\s+"), " "), "marked": norm.Replace(Regex(r"\s+"), MARK),
    "none": norm.Replace("a", ""), "to space": norm.Replace("b", " "),
    "a space": norm.Replace("a ", "b"), "letters": norm.Replace("ab", "s"),
    "byte": norm.ByteLevel(), "blank": norm.Replace(Regex(r"[\s\p{Z}\p{C}]"), " "),
    "blanks": norm.Replace(Regex(r"[\sb]+"), " "), "no blank": norm.Replace(Regex(r"\s"), ""),
    "tags": norm.Replace(Regex("<[^>]+>"), " "), "first a": norm.Replace(Regex("^a"), "b"),
    "between": norm.Replace(Regex("(?<=a) (?=b)"), ""), "before": norm.Replace(" .", "."),
    "two": norm.Replace(Regex(r"a\s|b."), "s"), "digit": norm.Replace(Regex(r"\d"), "0"),
    "line": norm.Replace("\n", " "), "tab": norm.Replace("\t", "a"),
    "any": norm.Replace(Regex("."), "a"),
}  # fmt: skip
SPLITS: dict[str, Any] = {
    "byte level": pre.ByteLevel(add_prefix_space=False), "prefixed": pre.ByteLevel(),
    "bytes": pre.ByteLevel(add_prefix_space=False, use_regex=False),
    "first": pre.Metaspace(prepend_scheme="first"), "always": pre.Metaspace(),
    "never": pre.Metaspace(prepend_scheme="never"), "whole": pre.Metaspace(split=False),
    "white": pre.WhitespaceSplit(), "words": pre.Whitespace(), "bert": pre.BertPreTokenizer(),
    "digits": pre.Digits(), "punctuation": pre.Punctuation(),
    "next": pre.Punctuation("merged_with_next"), "scripts": pre.UnicodeScripts(),
    "llama": pre.Split(Regex(LLAMA_3), "isolated"),
    "merged": pre.Split(Regex(LLAMA_3), "merged_with_next"),
    "char": pre.CharDelimiterSplit("b"), "space": pre.Split(" ", "merged_with_previous"),
    "tokens": pre.Split(Regex(r"\w+|[^\w\s]"), "removed", invert=True),
    "letters": pre.Split(Regex("[a-z]+"), "removed", invert=True),
    "at spaces": pre.Split(" ", "removed"), "at white": pre.Split(Regex(r"\s+"), "removed"),
    "delimiter": pre.CharDelimiterSplit(" "), "not a": pre.Split(Regex(r"\s+(?!a)"), "removed"),
    "pairs": pre.Split(Regex(r"[\s\S]{2}"), "isolated"), "a?": pre.Split(Regex("a+"), "contiguous"),
    "dots": pre.Split(Regex(r"[.']|\s"), "removed"), "b next": pre.Split("b", "merged_with_next"),
    "not a b": pre.Split(Regex(r"\S+|a b"), "removed", invert=True),
}  # fmt: skip
PAIRS = [("a", "b"), (MARK, "a"), (MARK, MARK), (" ", " "), (" ", "a"), ("Ġ", "a"), ("Ġ", "Ġ"),
         ("b", " "), ("a", MARK), (".", MARK), ("'", "s"), ("e", "\u0301"), ("1", "2"),
         (".", "'"), (MARK + "a", "b"), ("Ġa", "b"), (" a", "b")]  # fmt: skip
ADDED = [
    AddedToken("<m>"), AddedToken("<m>", lstrip=True), AddedToken("<m>", rstrip=True),
    AddedToken("<m>", normalized=False), AddedToken("ab", single_word=True), AddedToken("a b"),
    AddedToken("  "), AddedToken(" a"), AddedToken("b", normalized=False, lstrip=True),
    AddedToken("a", normalized=False), AddedToken(MARK + "b"),
]  # fmt: skip


@st.composite
def tokenizers(draw: st.DrawFn) -> Tokenizer:
    merges = draw(st.lists(st.sampled_from(PAIRS), unique=True, max_size=8))
    entries = dict.fromkeys(["<unk>", *LETTERS])
    kept = []
    for left, right in merges:
        if left in entries and right in entries:
            entries[left + right] = None
            kept.append((left, right))
    missing = draw(st.sets(st.sampled_from(["é", MARK, "Ġ", "\n"])))
    parts = {part for pair in kept for part in pair}
    known = [entry for entry in entries if entry not in missing - parts]
    vocabulary = {entry: number for number, entry in enumerate(known)}
    flags = {"unk_token": "<unk>", "fuse_unk": draw(st.booleans()),
             "ignore_merges": draw(st.booleans())}  # fmt: skip
    model = draw(st.sampled_from([
        BPE(vocabulary, kept, **flags), BPE(vocabulary, kept),
        BPE(vocabulary, kept, end_of_word_suffix="", **flags),
        Unigram([(entry, -float(len(entry))) for entry in known], unk_id=0),
        WordLevel(vocabulary, unk_token="<unk>"), WordPiece(vocabulary, unk_token="<unk>"),
    ]))  # fmt: skip
    tokenizer = Tokenizer(model)
    steps = draw(st.lists(st.sampled_from(list(NORMALIZERS)), max_size=3))
    if steps:
        tokenizer.normalizer = norm.Sequence([NORMALIZERS[step] for step in steps])
    splits = draw(st.lists(st.sampled_from(list(SPLITS)), max_size=3))
    if splits:
        tokenizer.pre_tokenizer = pre.Sequence([SPLITS[split] for split in splits])
    tokenizer.add_tokens(draw(st.lists(st.sampled_from(ADDED), max_size=1)))
    return tokenizer


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(
    tokenizer=tokenizers(),
    texts=st.lists(st.tuples(TEXTS, st.lists(st.integers(0, 14))), min_size=1, max_size=20),
)
def test_a_text_that_may_be_cut_has_the_same_ids(
    tokenizer: Tokenizer, texts: list[tuple[str, list[int]]]
) -> None:
    try:
        words = tokenizer_codec(tokenizer.to_str().encode(), "tokenizer.json")
    except FolderError:
        assume(False)
    for text, cuts in texts:
        whole = tokenizer.encode(text, add_special_tokens=False).ids if text else []
        assert words.encode(text)[0].tolist() == whole
        if words.whole_because is not None:
            continue
        edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
        ids, word = [], ""
        for number, (begin, end) in enumerate(pairwise(edges), 2):
            chunk_ids, word = words.encode(text[begin:end], word, number < len(edges))
            ids += chunk_ids.tolist()
        assert ids == whole, (text, edges)
