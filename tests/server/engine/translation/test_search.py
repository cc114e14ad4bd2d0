"""Which hypotheses a search keeps, and in which order: also where scores are equal."""

import asyncio
import tracemalloc
from collections.abc import Callable, Iterator
from weakref import ref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sruserve.server.engine.decoding_parameters import BeamSearch
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.translation.beam_runner import best
from sruserve.server.engine.translation.beam_shares import BeamShares
from sruserve.server.engine.translation.needs import Needs
from sruserve.server.engine.translation.search import Search
from sruserve.server.engine.translation.sentence import Sentence
from sruserve.server.engine.translation.sentence_queue import SentenceQueue
from sruserve.server.engine.translation.source import SourceInput
from tests.model.translation.systems import random_system

END = 0


@given(st.lists(st.integers(-3, 0), min_size=1, max_size=12), st.integers(1, 14))
def test_the_best_scores_are_those_of_a_stable_sort_however_many_are_equal(
    levels: list[int], count: int
) -> None:
    row = torch.tensor([levels, levels[::-1]], dtype=torch.float32)
    values, ids = best(row, count)
    for scores, top, places in zip(row, values, ids, strict=True):
        order = np.argsort(-scores.numpy(), kind="stable")[:count]
        assert places.tolist() == order.tolist()
        assert top.tolist() == scores[torch.from_numpy(order)].tolist()


def advance(search: Search, scores: list[list[float]]) -> list[int]:
    """One step with the scores of each token; returns the parents."""
    rows = np.array(scores, np.float32)
    ids = np.tile(np.arange(rows.shape[1]), (len(rows), 1))
    parents: list[int] = search.advance(rows, ids).tolist()
    return parents


def tokens(search: Search) -> list[list[int]]:
    """The tokens of the hypotheses that go on."""
    paths, length = search.paths, search.length
    return [paths.of(length, place)[0].tolist() for place in range(search.hypotheses)]


def test_of_equal_continuations_the_better_hypothesis_and_the_smaller_id_are_first() -> None:
    search = Search(BeamSearch(beam_size=3), END, 10)
    assert advance(search, [[-9, -2, -1, -1]]) == [0, 0, 0]
    assert tokens(search) == [[2], [3], [1]]
    assert advance(search, [[-9, -2, -1, -1], [-9, -1, -5, -5], [-9, 0, -5, -5]]) == [0, 0, 1]
    assert tokens(search) == [[2, 2], [2, 3], [3, 1]]


def test_an_end_among_the_best_ends_its_hypothesis_and_a_worse_one_does_not() -> None:
    search = Search(BeamSearch(beam_size=2, n_best=2, length_penalty=0), END, 10)
    advance(search, [[-9, -1, -2, -9]])
    advance(search, [[-0.5, -1.5, -9, -9], [-1, -1.5, -9, -9]])  # the second end is the third best
    assert tokens(search) == [[1, 1], [2, 1]]
    assert not search.done
    advance(search, [[-0.75, -5, -9, -9], [-9, -9, -9, -9]])
    assert search.done
    first, second = search.results()
    assert (first.tokens.tolist(), first.log_probability) == ([1], -1.5)
    assert (second.tokens.tolist(), second.log_probability) == ([1, 1], -3.25)
    assert first.finish_reason == second.finish_reason == "stop"


def test_a_search_continues_while_a_longer_translation_may_have_a_better_score() -> None:
    for alpha, is_over in ((0.0, True), (1.0, False)):
        search = Search(BeamSearch(beam_size=2, length_penalty=alpha), END, 10)
        advance(search, [[-1.0, -1.5, -9]])
        assert search.done is is_over  # at best, -1.5 * 6 / 15 beats -1 * 6 / 6


def test_a_hypothesis_that_has_ended_keeps_nothing_of_the_others() -> None:
    search = Search(BeamSearch(beam_size=3, n_best=3, attention=True, length_penalty=0), END, 3)
    first, ids = np.array([[-2, -1, -1, -1]], np.float32), np.arange(4)[None]
    weights = [np.random.default_rng(i).random((3, 5), np.float32) for i in range(3)]
    search.advance(first, ids, attention=weights[0][:1])
    for of_step in weights[1:]:
        scores = np.array([[-9, -9, -1, -2], [-0.5, -3, -9, -9], [-9, -1, -9, -9]], np.float32)
        search.advance(scores, np.tile(ids, (3, 1)), attention=of_step)
    hypotheses = search.results()
    assert [each.tokens.tolist() for each in hypotheses] == [[2], [3, 1], [1, 2, 2]]
    places = [[0], [0, 2], [0, 0, 0]]
    for each, own in zip(hypotheses, places, strict=True):
        assert each.attention is not None
        expected = [rows[place] for rows, place in zip(weights, own, strict=False)]
        assert each.attention.tolist() == [row.tolist() for row in expected]
        for array in (each.tokens, each.attention):
            assert array.base is None or array.base.nbytes == array.nbytes


def test_a_step_allocates_the_same_however_many_came_before_it() -> None:
    search = Search(BeamSearch(beam_size=8), END, 5000)
    scores = -np.random.default_rng(3).random((8, 16), np.float32)
    ids = np.tile(np.arange(1, 17), (8, 1))

    def peak_bytes() -> int:
        """The bytes that a step has at its most; the least of a few, since arrays grow."""
        peaks = []
        for _ in range(3):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            search.advance(scores[: search.hypotheses], ids[: search.hypotheses])
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
        return min(peaks)

    tracemalloc.start()
    try:
        search.advance(scores[:1], ids[:1])
        short = peak_bytes()
        while search.length < 2100:
            search.advance(scores, ids)
        assert peak_bytes() < short + 1000
    finally:
        tracemalloc.stop()


def test_the_needs_of_a_sentence_count_its_tokens_and_what_has_ended() -> None:
    translator = random_system("lstm-none")  # which has no cache
    few, many = (
        Needs.of(translator, BeamSearch(64, max_tokens=n), source(3)) for n in (1, 100_001)
    )
    assert many.nbytes - few.nbytes == 100_000 * 64 * (8 + 4)
    one, all_beams = (
        Needs.of(translator, BeamSearch(8, max_tokens=10, n_best=n, attention=True), source(100))
        for n in (1, 8)
    )
    assert all_beams.nbytes - one.nbytes == 7 * 10 * 100 * 4


def source(length: int) -> SourceInput:
    return SourceInput(np.zeros(length, np.int64))


def sentences(job: Job) -> list[Sentence]:
    return [Sentence(job, i, random_system("lstm-none"), END) for i in range(len(job.items))]


Request = Callable[..., Job]


@pytest.fixture
def request_of() -> Iterator[Request]:
    loop = asyncio.new_event_loop()

    def make(tenant: str, lengths: list[int], beams: int = 1) -> Job:
        items = [source(length) for length in lengths]
        done: asyncio.Future[None] = loop.create_future()
        kind, search = JobKind.TRANSLATE, BeamSearch(beams)
        return Job(kind, items, loop, lambda *_: None, done, search=search, tenant=tenant)

    yield make
    loop.close()


def take_one(queue: SentenceQueue) -> list[Sentence]:
    """The sentence whose turn it is, unless none waits."""
    may_begin = iter([True])
    return queue.take(lambda _: next(may_begin, False))


def test_tenants_begin_in_turns_and_so_do_the_requests_of_one(request_of: Request) -> None:
    request = request_of
    many, late, other = request("a", [5] * 4), request("a", [5] * 2), request("b", [5] * 2)
    gone = request("a", [5])
    queue = SentenceQueue()
    for job in (many, gone, late, other):
        queue.add(job, sentences(job))
    queue.drop(gone)
    assert len(queue) == 8
    order = []
    while taken := take_one(queue):
        order += [(first.job, first.index) for first in taken]
    assert order == [
        (many, 0), (other, 0), (late, 0), (other, 1), (many, 1), (late, 1), (many, 2), (many, 3),
    ]  # fmt: skip


def test_a_tenant_whose_searches_are_wide_begins_fewer_of_them(request_of: Request) -> None:
    wide, narrow = request_of("a", [5] * 2, beams=40), request_of("b", [5] * 12, beams=4)
    queue = SentenceQueue()
    for job in (wide, narrow):
        queue.add(job, sentences(job))
    order = [sentence.job for sentence in queue.take(lambda _: True)]
    assert order[:12] == [wide, *[narrow] * 10, wide]


def test_nothing_is_left_of_requests_that_are_dropped_after_others(request_of: Request) -> None:
    queue, waiting = SentenceQueue(), request_of("a", [5])
    queue.add(waiting, sentences(waiting))
    left: list[ref[Sentence]] = []
    for _ in range(20):
        gone = request_of("a", [9])
        made = sentences(gone)
        left += map(ref, made)
        queue.add(gone, made)
        queue.drop(gone)
        del made
    assert not any(sentence() for sentence in left)
    assert len(queue._tenants["a"].turns) < 4
    assert [sentence.job for sentence in take_one(queue)] == [waiting]


def test_a_tenant_that_has_to_wait_is_passed_by_others(request_of: Request) -> None:
    waits, begins = request_of("a", [5] * 3), request_of("b", [5] * 2)
    queue = SentenceQueue()
    for job in (waits, begins):
        queue.add(job, sentences(job))
    jobs: list[Job] = []

    def admit(sentence: Sentence) -> bool:
        jobs.append(sentence.job)
        return sentence.job is begins

    assert [sentence.job for sentence in queue.take(admit)] == [begins, begins]
    assert jobs == [waits, begins, begins]
    assert len(queue) == 3


def begun(request: Job, shares: BeamShares) -> list[bool]:
    return [shares.admit(sentence) for sentence in sentences(request)]


@pytest.mark.parametrize("scarce", ["memory", "beams", "time"])
def test_a_tenant_leaves_room_in_which_others_begin_small_sentences(
    request_of: Request, scarce: str
) -> None:
    (one,), enough = sentences(request_of("a", [5])), 1 << 30
    memory = 64 * one.needs.nbytes if scarce == "memory" else enough
    beams, max_beams = (
        (4, enough) if scarce == "time" else (enough, 64 if scarce == "beams" else enough)
    )
    shares, main = BeamShares((), memory, beams, max_beams), 4 if scarce == "time" else 56
    assert begun(request_of("a", [5] * (main + 1)), shares) == [True] * main + [False]
    assert begun(request_of("b", [5], beams=5), shares) == [False]  # over half of what is free
    assert begun(request_of("b", [5] * 5), shares) == [True] * 4 + [False]
    assert begun(request_of("c", [5], beams=3), shares) == [False]
    assert begun(request_of("c", [5] * 3), shares) == [True] * 2 + [False]
    assert begun(request_of("d", [5] * 2), shares) == [True, False]


def test_what_waits_for_its_turn_is_passed_only_in_the_reserve(request_of: Request) -> None:
    (one,) = sentences(request_of("a", [5]))
    live = sentences(request_of("a", [5] * 40))
    shares = BeamShares(live, 64 * one.needs.nbytes, 64, 64)
    assert begun(request_of("large", [5], beams=20), shares) == [False]
    assert begun(request_of("a", [5]), shares) == [False]
    assert begun(request_of("small", [5] * 5), shares) == [True] * 4 + [False]
