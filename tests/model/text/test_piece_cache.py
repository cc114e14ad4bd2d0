"""The bytes that a vocabulary caches are bounded for all texts."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from string import ascii_lowercase

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram
from tokenizers.pre_tokenizers import WhitespaceSplit

from sruserve.model.text import tokenizer_file
from sruserve.model.text.piece_cache import MAX_BYTES, MAX_CHARACTERS, PieceCache
from sruserve.model.text.vocabulary_files import tokenizer_codec
from sruserve.model.text.words import Words

LETTERS = {letter: index for index, letter in enumerate(ascii_lowercase)}


@pytest.fixture
def letters() -> Words:
    """An id for each letter, so that each letter of a word gives one id."""
    return words_of(BPE(LETTERS, []))


def words_of(model: BPE | Unigram) -> Words:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = WhitespaceSplit()
    words = tokenizer_codec(tokenizer.to_str().encode(), "")
    assert isinstance(words, Words)
    return words


def random_words(count: int, length: int) -> Iterator[str]:
    random = Random(count)
    return ("".join(random.choices(ascii_lowercase, k=length)) for _ in range(count))


@contextmanager
def left_behind() -> Iterator[Callable[[], int]]:
    """A function that returns the bytes that Python has allocated since and not freed."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_long_words_leave_nothing(letters: Words) -> None:
    letters.locate("warm up")
    with left_behind() as size:
        for word in random_words(100, 4000):
            letters.encode(word)
        for word in random_words(20, 4000):
            letters.locate(word)
        assert size() < 1 << 16


@pytest.mark.parametrize("length", [4, MAX_CHARACTERS])
def test_what_is_kept_of_short_words_is_bounded_in_bytes(
    letters: Words, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    max_bytes = 1 << 18
    monkeypatch.setattr(letters, "_ids", PieceCache(max_bytes))
    monkeypatch.setattr(letters, "_places", PieceCache(max_bytes))
    with left_behind() as size:
        for words in (random_words(1500, length), random_words(500, length)):
            for word in words:
                letters.locate(word)
                assert len(letters._ids) <= max_bytes // 300
            assert size() < 2 * max_bytes  # ids and places
    assert letters._ids
    assert MAX_BYTES <= 8 << 20


def test_a_word_that_is_repeated_is_not_tokenised_again(
    letters: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = letters.encode("how far")[0].tolist(), letters.locate("how far")[1].tolist()
    monkeypatch.setattr(letters, "_tokenizer", None)
    assert (letters.encode("far how far")[0][3:].tolist()) == first[0]
    assert letters.locate("how far")[1].tolist() == first[1]


def test_pieces_are_forgotten_only_when_others_need_their_bytes() -> None:
    pieces = PieceCache[list[int]](1000)
    for piece in ("a", "b"):
        pieces.add(piece, [1], 1)
    assert set(pieces) == {"a", "b"}
    pieces.add("c", [1], 1)
    assert set(pieces) == {"c"}
    pieces.add("d", [1] * 100, 100)
    pieces.add("e" * (MAX_CHARACTERS + 1), [1], 1)
    assert set(pieces) == {"c"}


@pytest.mark.parametrize(
    "model",
    [BPE(LETTERS, []), Unigram([(letter, -1.0) for letter in LETTERS], unk_id=0)],
    ids=["BPE", "Unigram"],
)
def test_the_library_keeps_few_words_itself(
    model: BPE | Unigram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep 10,000 of up to 255 bytes, 140 MB; `Words` keeps none so long."""
    bounds: list[int] = []
    bound = tokenizer_file._bound_cache

    def noted(model: object) -> None:
        class Model:
            def _resize_cache(self, words: int) -> None:
                model._resize_cache(words)  # type: ignore[attr-defined]
                bounds.append(words)

        bound(Model())

    monkeypatch.setattr(tokenizer_file, "_bound_cache", noted)
    words_of(model)
    assert bounds == [1024]


@pytest.mark.parametrize("length", [1000, 150_000])
def test_texts_give_the_same_ids_and_places_whole_and_word_by_word(
    letters: Words, length: int
) -> None:
    """Across the parts that a long text is cut into, and words that are longer than one."""
    random = Random(length)
    words: list[str] = []
    while sum(map(len, words)) < length:
        words += random_words(1, random.choice([1, 3, 8, 70, length // 2]))
        words.append(random.choice(" \n\t\v\f\r"))
    text = "".join(words)
    ids, places, _ = letters.locate(text)
    spelled = "".join(text[begin:end] for begin, end in places.tolist())
    assert spelled == "".join(text.split())
    assert [LETTERS[letter] for letter in spelled] == ids.tolist()
    assert letters.encode(text)[0].tolist() == ids.tolist()
