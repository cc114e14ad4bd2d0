"""Bursts: a stream's tokens do not depend on the bucket, the other streams or the burst's graphs.

There is no GPU here, so a tape stands in for the graph: it notes every tensor operation of the
first run, and a replay does the same operations on the same memory, whatever Python says by then.
"""

from collections.abc import Callable
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

    def finish(self) -> None:
        pass


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
        row = slots.position.unsqueeze(0)
        uniform = slots.uniforms.gather(0, row).squeeze(0)
        seen = slots.window.clamp(min=0).sum(1) + (slots.temperature * 7 + slots.top_k).long()
        picked = ((state + (uniform * 1e6).floor()).long() + seen) % VOCABULARY
        slots.history.scatter_(0, row, picked.unsqueeze(0))
        slots.window.scatter_(1, (slots.position % WINDOW).unsqueeze(1), picked.unsqueeze(1))
        slots.tokens.copy_(picked)
        slots.position.add_(1)

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
        uniforms=torch.rand(steps, count, dtype=torch.float64, generator=g),
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
        tokens = []
        for uniform in streams.uniforms[:, i].tolist():
            state = (state * 31 + token + 1) % 100_003.0
            seen = sum(max(entry, 0) for entry in window) + extra
            token = (int(state + uniform * 1e6 // 1) + seen) % VOCABULARY
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


def test_a_burst_is_made_of_the_fewest_recorded_graphs() -> None:
    recorder = TapeRecorder()
    bursts = GraphedDecode(toy(fresh_states()), CPU, 1, 32, recorder)
    assert recorder.recorded == len(LENGTHS)
    for steps, graphs in ((1, [2]), (16, [0]), (13, [1, 1, 1, 2]), (32, [0, 0])):
        recorder.replayed.clear()
        bursts.run(some_streams(1, steps), steps)
        assert recorder.replayed == graphs


def test_graphs_are_recorded_for_every_bucket_up_to_the_most_streams() -> None:
    for max_streams, buckets in ((1, 1), (2, 2), (3, 3), (200, 9), (4096, len(BUCKETS))):
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
        assert all((f.data_ptr() - slots.tokens.data_ptr()) % 16 == 0 for f in fields)
