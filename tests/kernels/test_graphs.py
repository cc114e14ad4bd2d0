"""Bursts: a stream's tokens do not depend on the bucket, the other streams or the burst's graphs.

There is no GPU here, so a tape stands in for the graph: it notes every tensor operation of the
first run, and a replay does the same operations on the same memory, whatever Python says by then.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from itertools import product as pairs
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from sruserve.kernels.graphs import BUCKETS, LENGTHS, Eager, GraphBackend, GraphedDecode
from sruserve.kernels.slots import WINDOW, DecodeInputs, Slots

CPU = torch.device("cpu")
VOCABULARY = 1009
ROWS = 64


class _Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.notes: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.notes.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, result in self.notes:
            again = tree_flatten(func(*args, **kwargs))[0]
            for old, new in zip(tree_flatten(result)[0], again, strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class TapeRecorder:
    """Counts what it records and what is replayed."""

    def __init__(self) -> None:
        self.recorded = 0
        self.replayed: list[int] = []

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        with (tape := _Tape()):
            work()
        number, self.recorded = self.recorded, self.recorded + 1

        def replay() -> None:
            self.replayed.append(number)
            tape.replay()

        return replay

    def copy(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source)

    def mark(self) -> Callable[[], None]:
        return lambda: None


class SlowDevice(TapeRecorder):
    """A device that begins no work before somebody waits, and then does it in order."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: list[Callable[[], None]] = []
        self._done = 0

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self._run(len(self._queue))
        replay = super().record(work)
        return lambda: self._queue.append(replay)

    def copy(self, target: Tensor, source: Tensor) -> None:
        self._queue.append(lambda: super(SlowDevice, self).copy(target, source))

    def mark(self) -> Callable[[], None]:
        place = len(self._queue)
        return lambda: self._run(place)

    def _run(self, end: int) -> None:
        for work in self._queue[self._done : end]:
            work()
        self._done = max(self._done, end)


def fresh_states() -> Tensor:
    return torch.arange(1, ROWS + 1, dtype=torch.float64)


def toy(states: Tensor) -> Callable[[Slots], None]:
    """A network of one number per stream that uses all of the slots, and no value on the host."""

    def step(slots: Slots) -> None:
        known = slots.source >= 0
        state = states[slots.source.clamp(min=0)].where(known, 0.0)
        state = (state * 31 + slots.tokens + 1).fmod(100_003.0)
        # A row that nobody has takes what is dropped.
        states.index_copy_(0, slots.target.where(slots.target >= 0, ROWS - 1), state)
        number = (slots.seed * 7919 + slots.choice * 31 + slots.draw * 104_729) % 1_000_003
        seen = slots.window.clamp(min=0).sum(1) + (slots.temperature * 7 + slots.top_k).long()
        picked = (state.long() + number + seen) % VOCABULARY
        takes_part = slots.position < slots.limits
        row, place = slots.position.unsqueeze(0), (slots.draw % WINDOW).unsqueeze(1)
        row = row.clamp(max=len(slots.history) - 1)
        old = slots.history.gather(0, row)
        slots.history.scatter_(0, row, torch.where(takes_part, picked, old))
        old = slots.window.gather(1, place).squeeze(1)
        slots.window.scatter_(1, place, torch.where(takes_part, picked, old).unsqueeze(1))
        slots.tokens.copy_(torch.where(takes_part, picked, slots.tokens))
        slots.position.add_(takes_part)
        slots.draw.add_(takes_part)
        slots.target.masked_fill_(slots.position >= slots.limits, -1)

    return step


def some_streams(count: int, steps: int, seed: int = 0) -> DecodeInputs:
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(ROWS - 1, generator=g)
    source, target = order[:count].clone(), order[-count:].clone()
    source[::3] = target[::3]
    source[1::5] = -1
    return DecodeInputs(
        tokens=torch.randint(0, VOCABULARY, (count,), generator=g),
        source=source,
        target=target,
        limits=torch.full((count,), steps),
        seed=torch.randint(0, 1000, (count,), generator=g),
        choice=torch.randint(0, 9, (count,), generator=g),
        draw=torch.randint(0, 200, (count,), generator=g),
        temperature=torch.rand(count, generator=g) * 3,
        top_p=torch.ones(count),
        min_p=torch.zeros(count),
        penalty=torch.ones(count),
        top_k=torch.randint(0, 9, (count,), dtype=torch.int32, generator=g),
        window=torch.randint(-1, VOCABULARY, (count, WINDOW), generator=g),
    )


def alone(streams: DecodeInputs, steps: int) -> tuple[Tensor, Tensor]:
    """The tokens of each stream, and the states after: `toy` one stream at a time, in Python."""
    picked, ends = [], []
    for i, source in enumerate(streams.source.tolist()):
        state = float(fresh_states()[source]) if source >= 0 else 0.0
        token, window = int(streams.tokens[i]), streams.window[i].tolist()
        extra = int((streams.temperature[i] * 7 + streams.top_k[i]).long())
        key = 7919 * int(streams.seed[i]) + 31 * int(streams.choice[i])
        tokens = []
        for draw in range(int(streams.draw[i]), int(streams.draw[i]) + steps):
            state = (state * 31 + token + 1) % 100_003.0
            seen = sum(max(entry, 0) for entry in window) + extra
            token = (int(state) + (key + draw * 104_729) % 1_000_003 + seen) % VOCABULARY
            window = [*window[1:], token]
            tokens.append(token)
        picked.append(tokens)
        ends.append(state)
    return torch.tensor(picked).T, torch.tensor(ends, dtype=torch.float64)


@settings(max_examples=50)
@given(
    count=st.integers(1, 24),
    steps=st.integers(1, 23),
    max_streams=st.sampled_from([1, 3, 8, 24]),
    recorder=st.sampled_from([Eager, TapeRecorder]),
)
def test_company_buckets_and_graphs_change_no_token(
    count: int, steps: int, max_streams: int, recorder: Callable[[], GraphBackend]
) -> None:
    streams = some_streams(count, steps, seed=count)
    expected, expected_states = alone(streams, steps)
    states = fresh_states()
    bursts = GraphedDecode(toy(states), CPU, max_streams, 32, recorder())
    states.copy_(fresh_states())  # what the recording did to it
    assert torch.equal(bursts.run(streams, steps), expected)
    assert torch.equal(states[streams.target], expected_states)


def test_a_bucket_used_again_remembers_nothing_of_the_streams_before() -> None:
    states = fresh_states()
    bursts = GraphedDecode(toy(states), CPU, 8, 16, TapeRecorder())
    states.copy_(fresh_states())
    bursts.run(some_streams(8, 16, seed=1), 16)
    states.copy_(fresh_states())
    streams = some_streams(5, 9, seed=2)
    expected, expected_states = alone(streams, 9)
    assert torch.equal(bursts.run(streams, 9), expected)
    assert torch.equal(states[streams.target], expected_states)
    written = set(streams.target.tolist()) | {ROWS - 1}
    untouched = [row for row in range(ROWS) if row not in written]
    assert torch.equal(states[untouched], fresh_states()[untouched])


@pytest.mark.parametrize("recorder", [Eager, TapeRecorder, SlowDevice])
def test_a_burst_launched_before_the_last_one_is_read_continues_from_its_tokens(
    recorder: Callable[[], GraphBackend],
) -> None:
    """Each of five bursts writes other rows, and the host reads one while the next is launched."""
    count, steps, bursts_run = 5, 6, 5
    streams = replace(some_streams(count, steps), source=torch.arange(count))
    expected, ends = alone(streams, steps * bursts_run)
    states = fresh_states()
    bursts = GraphedDecode(toy(states), CPU, 8, steps, recorder())
    states.copy_(fresh_states())
    bursts.load(streams)
    rows = [torch.arange(count) + count * number for number in range(bursts_run + 1)]
    read, running = [], None
    for source, target in pairwise(rows):
        before, running = running, bursts.launch(source, target, streams.limits, steps)
        if before is not None:
            read.append(before.tokens().clone())
    assert running is not None
    read.append(running.tokens().clone())
    assert torch.equal(torch.cat(read), expected)
    assert torch.equal(states[rows[-1]], ends)


@pytest.mark.parametrize("recorder", [Eager, TapeRecorder, SlowDevice])
def test_a_stream_past_its_limit_writes_nothing_and_continues_in_the_next_burst(
    recorder: Callable[[], GraphBackend],
) -> None:
    count, steps = 5, 6
    streams = replace(some_streams(count, steps), source=torch.arange(count))
    limits = torch.tensor([6, 0, 1, 5, 3])
    expected, _ = alone(streams, steps + 6)
    states = fresh_states()
    bursts = GraphedDecode(toy(states), CPU, 8, steps, recorder())
    states.copy_(fresh_states())
    bursts.load(streams)
    first, second = torch.arange(count), torch.arange(count) + 10
    one = bursts.launch(first, second, limits, steps)
    source = torch.where(limits == 0, first, second)
    two = bursts.launch(source, second + 10, torch.full((count,), 6), 6)
    tokens, then = one.tokens().clone(), two.tokens()
    for i, limit in enumerate(limits.tolist()):
        assert torch.equal(tokens[:limit, i], expected[:limit, i])
        assert torch.equal(then[:, i], expected[limit : limit + 6, i])
        _, ends = alone(streams, limit)
        after = fresh_states()[second[i]] if limit == 0 else ends[i]
        assert states[second[i]] == after


def test_a_burst_is_made_of_the_fewest_recorded_graphs() -> None:
    recorder = TapeRecorder()
    bursts = GraphedDecode(toy(fresh_states()), CPU, 1, 32, recorder)
    assert recorder.recorded == len(LENGTHS)
    for steps, graphs in ((1, [2]), (16, [0]), (13, [1, 1, 1, 2]), (32, [0, 0])):
        recorder.replayed.clear()
        bursts.run(some_streams(1, steps), steps)
        assert recorder.replayed == graphs


def test_graphs_are_recorded_for_every_bucket_up_to_the_most_streams() -> None:
    count = len(BUCKETS)
    sizes = ((1, 1), (2, 2), (3, 3), (200, 9), (4096, count), (5000, count + 1))
    for max_streams, buckets in sizes:
        recorder = TapeRecorder()
        GraphedDecode(lambda slots: None, CPU, max_streams, 1, recorder)
        assert recorder.recorded == buckets, max_streams


def test_a_burst_longer_than_what_was_asked_for_is_refused() -> None:
    bursts = GraphedDecode(toy(fresh_states()), CPU, 1, 4)
    for steps in (0, 5):
        with pytest.raises(ValueError, match="1 to 4 steps"):
            bursts.run(some_streams(1, 5), steps)


def test_no_two_fields_of_the_slots_share_memory_and_all_are_aligned() -> None:
    for size, steps in pairs((1, 2, 7, 64), (1, 16)):
        slots = Slots(size, steps, CPU)
        names = [name for name in Slots.__annotations__ if name != "size"]
        fields = [getattr(slots, name) for name in names]
        spans = sorted((f.data_ptr(), f.data_ptr() + f.nbytes) for f in fields)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
        assert all(f.storage_offset() * f.itemsize % 16 == 0 for f in fields)
