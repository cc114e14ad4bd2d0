"""Text out of tokens: UTF-8 that is not finished, stop strings that may begin."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, SupportsIndex

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sruserve.server.engine.detokenizer import Detokenizer, single_bytes

PIECES = tuple(bytes([value]) for value in range(256))


def parts(text: str | bytes, cuts: list[int]) -> list[bytes]:
    data = text.encode() if isinstance(text, str) else text
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(text=st.text(max_size=30), cuts=st.lists(st.integers(0, 200), max_size=5))
def test_a_text_cut_inside_a_character_comes_out_whole(text: str, cuts: list[int]) -> None:
    written, utf8 = "", b""
    for part in parts(text, cuts):
        writer = Detokenizer(PIECES, (), utf8)
        written += writer.write(part)[0]
        utf8 = writer.utf8
    assert written == text
    assert utf8 == b""


@given(
    text=st.text("ab", max_size=40),
    stop=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 200), max_size=5),
)
def test_a_text_ends_before_the_first_stop_string_however_it_arrives(
    text: str, stop: list[str], cuts: list[int]
) -> None:
    ends = [(text.find(s) + len(s), -len(s)) for s in stop if s in text]
    end = min(ends)[0] if ends else None
    written, held_back, stopped, used = "", "", None, 0
    for part in parts(text, cuts):
        writer = Detokenizer(PIECES, stop, held_back=held_back)
        certain, count, stopped = writer.write(part)
        written, held_back, used = written + certain, writer.held_back, used + count
        if stopped is not None:
            break
    if end is None:
        assert stopped is None
        assert written + held_back == text
        assert all(s.startswith(held_back) for s in stop if held_back) or any(
            s.startswith(held_back) for s in stop
        )
    else:
        assert stopped is not None
        assert used == end
        assert text[:end] == written + stopped


def overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with."""
    longest = min(len(text), len(stop) - 1)
    return next(n for n in range(longest, -1, -1) if text.endswith(stop[:n]))


def searched(
    text: str, held_back: str, stop: list[str], ignored: int
) -> tuple[str, str, int, str | None]:
    """The certain text of `held_back` and new text, and what is held back; searched as a whole."""
    certain = ""
    for used, character in enumerate(text, 1):
        held_back += character
        if used <= ignored:
            certain, held_back = certain + held_back, ""
        elif matches := [(held_back.find(s), s) for s in stop if s in held_back]:
            at, first = min(matches)
            return certain + held_back[:at], "", used, first
    cut = len(held_back) - max(overlap(held_back, s) for s in stop)
    return certain + held_back[:cut], held_back[cut:], len(text), None


@given(
    held_back=st.text("ab", max_size=6),
    written=st.lists(st.text("abc", min_size=1, max_size=30), min_size=1, max_size=5),
    stop=st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=4),
    ignored=st.integers(0, 8),
)
def test_stop_strings_are_found_as_if_all_held_back_text_was_searched(
    held_back: str, written: list[str], stop: list[str], ignored: int
) -> None:
    writer = Detokenizer(PIECES, stop, held_back=held_back)
    for text in written:
        certain, held_back, used, stopped = searched(text, held_back, stop, ignored)
        assert writer.write(text.encode(), ignored) == (certain, used, stopped)
        assert writer.held_back == held_back
        if stopped is not None:
            return


class Counted(str):
    """A stop string that counts the looks at it."""

    __slots__ = ()
    looks = 0

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        Counted.looks += 1
        return super().__getitem__(key)


def test_a_text_that_is_held_back_for_long_is_not_searched_again_at_each_token() -> None:
    writer = Detokenizer(PIECES, ["a" * 255 + "b", Counted("b" * 256)])
    writer.write(b"a" * 300)
    Counted.looks = 0
    for _ in range(100):
        writer.write(b"a")
    assert Counted.looks < 10 * 100
    assert len(writer.held_back) == 255


def test_text_that_may_begin_a_stop_string_is_held_back_until_it_is_certain() -> None:
    writer = Detokenizer(PIECES, ("END",))
    assert writer.write(b"the EN") == ("the ", 6, None)
    assert writer.write(b"emy") == ("ENemy", 3, None)
    assert writer.write(b" EN") == (" ", 3, None)
    assert writer.flush() == "EN"


def test_stop_strings_are_not_looked_for_among_the_least_tokens() -> None:
    writer = Detokenizer(PIECES, ("b",))
    assert writer.write(b"abcabc", ignore_stop=3) == ("abca", 5, "b")


def test_bytes_that_are_no_text_are_replaced() -> None:
    writer = Detokenizer(PIECES, ())
    assert writer.write(b"a\xffb\xe2\x82")[0] == "a\ufffdb"
    assert writer.utf8 == b"\xe2\x82"
    assert writer.flush() == "\ufffd"


def test_text_that_an_earlier_request_held_back_is_searched_with_the_first_token_alone() -> None:
    stop = Counted("a" * 255 + "b")
    Detokenizer(PIECES, [stop])  # now its borders are known
    Counted.looks = 0
    writer = Detokenizer(PIECES, [stop], held_back="a" * 255)
    assert Counted.looks == 0
    assert writer.held_back == "a" * 255
    assert writer.write(b"b") == ("", 1, stop)
    assert Counted.looks > 0


class Vocabulary:
    """The members of a codec that decide whether its ids are single bytes."""

    def __init__(self, pieces: Sequence[bytes], ends: Any = None) -> None:
        self.pieces, self.ends = tuple(pieces), ends


@given(data=st.binary(max_size=40), cuts=st.lists(st.integers(0, 200), max_size=5))
def test_ids_that_are_single_bytes_give_the_text_of_their_pieces(
    data: bytes, cuts: list[int]
) -> None:
    shuffled: Any = Vocabulary([bytes([255 - value]) for value in range(256)])
    fast = Detokenizer(shuffled.pieces, (), bytes_of=single_bytes(shuffled))
    slow = Detokenizer(shuffled.pieces, ())
    for part in parts(data, cuts):
        assert (
            fast.write_all(np.frombuffer(part, np.uint8).astype(np.int32)) == (slow.write(part)[0])
        )
        assert fast.utf8 == slow.utf8


def test_only_single_bytes_are_looked_up_in_a_table() -> None:
    one: Any = Vocabulary([b"a", b"b"])
    assert (single_bytes(one) or b"")[:2] == b"ab"
    others = ([b"a", b"bc"], None), ([b"a", b""], None), ([b"a"], [True]), ([b"a"] * 257, None)
    for pieces, ends in others:
        vocabulary: Any = Vocabulary(pieces, ends)
        assert single_bytes(vocabulary) is None
