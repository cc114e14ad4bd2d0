"""Tokenizers of every kind: chunks give the ids of the whole, and ids the tokenizer's text."""

from functools import cache
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sruserve.model.text.codec import Codec, pieces_after
from sruserve.model.text.vocabulary_files import tokenizer_codec
from tests.model.text.trained_tokenizers import KINDS, SENTENCES, trained

ALPHABET = [
    *sorted(set("".join(SENTENCES))),
    " ", "  ", " far", "is ", "<s>", "<mask>", " <mask>", "<|end|>", "\t", "\u3000", "\xa0",
    "\u0301", "\u2581", "\u0600", "\r\n", "'s", "ﬁ", "Σ", "İ", "\U0001f600", "\x00",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(ALPHABET), max_size=30).map("".join)


@cache
def codec(kind: str) -> Codec:
    return tokenizer_codec(trained(kind).to_str().encode(), kind)


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 60), max_size=6))
@example(text="is<s> far", cuts=[7])
@example(text="<mask> far <mask> is", cuts=[8, 19])
def test_any_chunks_of_a_text_give_the_ids_and_places_of_the_whole(
    kind: str, text: str, cuts: list[int]
) -> None:
    words = codec(kind)
    assert words.whole_because is None
    whole = trained(kind).encode(text).ids if text else []
    ids, places, rest = words.locate(text)
    assert (words.encode(text)[0].tolist(), ids.tolist(), rest) == (whole, whole, "")
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    all_ids, located, word = [], [], ""
    for number, (begin, end) in enumerate(pairwise(edges)):
        more = number + 2 < len(edges)
        encoded = words.encode(text[begin:end], word, more)
        part, at, word = words.locate(text[begin:end], word, more)
        assert (encoded[0].tolist(), encoded[1]) == (part.tolist(), word)
        all_ids += part.tolist()
        located += (at + begin).tolist()
    assert (all_ids, located, word) == (whole, places.tolist(), "")


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, word=st.sampled_from(["", " fa", "ho"]), size=st.integers(1, 20))
def test_parts_of_a_text_give_the_ids_of_the_whole(
    kind: str, text: str, word: str, size: int
) -> None:
    words, ids, before = codec(kind), [], word
    parts = words.parts(text, size) or [""]
    assert "".join(parts) == text
    for number, part in enumerate(parts, 1):
        part_ids, rest = words.encode(part, before, number == len(parts))
        ids += part_ids.tolist()
        before = ""
    whole, left = words.encode(text, word, True)
    last, _ = words.encode("", rest)
    assert [*ids, *last] == [*whole.tolist(), *words.encode("", left)[0].tolist()]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_pieces_of_ids_are_the_text_of_the_tokenizers_decoder(
    kind: str, data: st.DataObject
) -> None:
    words, tokenizer = codec(kind), trained(kind)
    known = st.integers(0, words.size - 1)
    if kind == "llama":  # bytes that are no characters have replacements of their own
        texts = [
            i for i in range(words.size) if not str(tokenizer.id_to_token(i)).startswith("<0x")
        ]
        known = st.sampled_from(texts)
    ids = data.draw(st.lists(known, min_size=1, max_size=20))
    cut = data.draw(st.integers(1, len(ids)))
    first, pieces = ids[0], pieces_after(words, -1)
    later = [pieces[i] for i in ids[:cut]][1:]
    pieces = pieces_after(words, ids[cut - 1])
    text = b"".join([*later, *(pieces[i] for i in ids[cut:])])
    begin = tokenizer.decode([first], skip_special_tokens=False)
    if kind.startswith("byte level") or kind == "split byte level":
        begin, text = "", words.pieces[first] + text
    whole = tokenizer.decode(ids, skip_special_tokens=False)
    assert begin + text.decode(errors="replace") == whole


def test_bytes_of_unknown_characters_are_joined() -> None:
    ids = trained("llama").encode("日 é far").ids
    text = b"".join(codec("llama").pieces[i] for i in ids)
    assert text.decode() == " 日 é far"


@pytest.mark.parametrize("kind", KINDS)
def test_characters_of_ids_are_those_of_their_text(kind: str) -> None:
    words = codec(kind)
    for piece, count in zip(words.pieces, words.characters, strict=True):
        assert count == sum(byte & 0xC0 != 0x80 for byte in piece)
