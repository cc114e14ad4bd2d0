"""Windowed attention: the kernel agrees with the definition; other queries change no bits."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sruserve.kernels.attention import Attention, attend, cpu_attention
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.reference.attention import reference_attention
from tests.kernels.instruction_sets import EACH_SET

DTYPES = [torch.float32, torch.bfloat16]
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
NAN = float("nan")


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Case:
    """The arguments of one call, which `run` does not change."""

    q: Tensor
    keys_values: Tensor
    residual: Tensor
    batch: RaggedBatch
    attention: Attention
    memory: Tensor | None

    def run(self, reference: bool = False) -> tuple[Tensor, Tensor]:
        """Returns the outputs of the batch's own rows, and the states after the call."""
        batch = replace(self.batch, states=self.batch.states.clone())
        run = reference_attention if reference else cpu_attention
        out = run(
            self.q, self.keys_values, self.residual, batch, self.attention, memory=self.memory
        )
        return out[: int(batch.offsets[-1])], batch.states

    def part(self, begin: int, end: int, batch: RaggedBatch) -> "Case":
        """Some of the rows, as a batch of their own."""
        memory = None if self.memory is None else self.memory[begin:end]
        return Case(
            self.q[begin:end],
            self.keys_values[begin:end],
            self.residual[begin:end],
            batch,
            self.attention,
            memory,
        )


def case(
    lengths: list[int],
    *,
    window: int | None = 5,
    heads: int = 1,
    size: int = 6,
    memory: bool = False,
    seen: list[int] | None = None,
    dtype: torch.dtype = torch.float32,
    padding: int = 0,
) -> Case:
    """Random numbers. seen: positions before each stream's call (None: no source row)."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    width, rows, streams = heads * size, sum(lengths) + padding, len(lengths)
    depth = (4 if memory else 2) * width
    ring = (window or 0) * depth
    states = random(2 * streams, 3 + ring + 1 + 2).float()
    order = torch.randperm(2 * streams, generator=generator)
    source, target = order[:streams], order[streams:]
    if seen is None:
        source = torch.full((streams,), -1)
    elif window is not None:
        counts = [n if n < 2 * window else window + n % window for n in seen]
        states[source, 3 + ring] = torch.tensor(counts).float()
        for row, count in zip(source.tolist(), counts, strict=True):
            states[row, 3 + min(count, window) * depth : 3 + ring] = 0
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return Case(
        random(rows, width),
        random(rows, 2 * width),
        random(rows, width),
        RaggedBatch(offsets, states, source, target),
        Attention(window=window, heads=heads, alpha=0.7, column=3),
        random(rows, 2 * width) if memory else None,
    )


LENGTHS = [3, 0, 1, 40, 2, 17]
SEEN = [2, 7, 0, 3, 12, 5]


@EACH_SET
@pytest.mark.parametrize("memory", [False, True], ids=["", "memory"])
@pytest.mark.parametrize("seen", [None, SEEN], ids=["fresh", "continued"])
@pytest.mark.parametrize("window", [1, 5, 30, None])
@pytest.mark.parametrize(("heads", "size"), [(1, 70), (3, 5), (2, 32)])
def test_it_agrees_with_the_definition(
    heads: int, size: int, window: int | None, seen: list[int] | None, memory: bool
) -> None:
    work = case(LENGTHS, window=window, heads=heads, size=size, seen=seen, memory=memory, padding=3)
    result, states = work.run()
    expected, after = work.run(reference=True)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(states, after)


@EACH_SET
@pytest.mark.parametrize("memory", [False, True], ids=["", "memory"])
def test_bfloat16_is_the_float32_result_rounded(memory: bool) -> None:
    work = case(LENGTHS, window=30, heads=2, size=33, memory=memory, dtype=torch.bfloat16)
    wide = replace(
        work,
        q=work.q.float(),
        keys_values=work.keys_values.float(),
        residual=work.residual.float(),
        memory=None if work.memory is None else work.memory.float(),
    )
    result, states = work.run()
    expected, after = wide.run()
    assert torch.equal(result, expected.bfloat16())
    assert torch.equal(states, after)


@EACH_SET
@given(
    length=st.integers(1, 70),
    cuts=st.sets(st.integers(1, 69), max_size=6),
    window=st.integers(1, 40),
    heads=st.integers(1, 3),
    size=st.integers(1, 40),
    memory=st.booleans(),
    seen=st.integers(0, 100),
    in_place=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_any_split_of_time_gives_the_same_bits(
    length: int,
    cuts: set[int],
    window: int,
    heads: int,
    size: int,
    memory: bool,
    seen: int,
    in_place: bool,
    dtype: torch.dtype,
) -> None:
    work = case(
        [length], window=window, heads=heads, size=size, memory=memory, seen=[seen], dtype=dtype
    )
    whole, end = work.run()
    states = work.batch.states.clone()
    source, target = work.batch.source, work.batch.target
    if in_place:
        target = source
    edges = [0, *sorted(cut for cut in cuts if cut < length), length]
    parts = []
    for first, last in pairwise(edges):
        batch = RaggedBatch(torch.tensor([0, last - first]), states, source, target)
        piece = work.part(first, last, batch)
        parts.append(
            attend(piece.q, piece.keys_values, piece.residual, batch, work.attention, piece.memory)
        )
        source = target
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(states[target, 3:-2], end[work.batch.target, 3:-2])


@EACH_SET
@EACH_DTYPE
@pytest.mark.parametrize("window", [4, 30, None])
@pytest.mark.parametrize("memory", [False, True], ids=["", "memory"])
def test_a_sequence_has_the_same_bits_in_any_company(
    memory: bool, window: int | None, dtype: torch.dtype
) -> None:
    work = case(LENGTHS, window=window, heads=2, size=19, memory=memory, seen=SEEN, dtype=dtype)
    together, states = work.run()
    offsets = work.batch.offsets.tolist()
    for i, length in enumerate(LENGTHS):
        own = torch.tensor([0, length])
        source, target = work.batch.source[i : i + 1], work.batch.target[i : i + 1]
        batch = RaggedBatch(own, work.batch.states, source, target)
        alone, after = work.part(offsets[i], offsets[i + 1], batch).run()
        assert torch.equal(alone, together[offsets[i] : offsets[i + 1]])
        assert torch.equal(after[target], states[target])


@EACH_SET
@EACH_DTYPE
@pytest.mark.usefixtures("threads")
def test_threads_do_not_change_bits(dtype: torch.dtype) -> None:
    work = case([300, 1, 0, 90, 200], window=64, heads=2, size=48, seen=[9] * 5, dtype=dtype)
    results = []
    for number in (1, 2, 5):
        torch.set_num_threads(number)
        results.append(work.run())
    for out, states in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(states, results[0][1])


def test_a_query_sees_itself_and_a_window_before_it_alone() -> None:
    work = case([40], window=7, seen=[20])
    plain, _ = work.run()
    for changed in range(40):
        other = replace(work, keys_values=work.keys_values.clone())
        other.keys_values[changed] += 1
        out, _ = other.run()
        moved = (out != plain).any(1).nonzero()[:, 0].tolist()
        assert moved == list(range(changed, min(changed + 8, 40)))


def test_a_fresh_row_is_all_zeros_where_nothing_was_seen() -> None:
    work = case([3], window=8, size=4)
    _, states = work.run()
    row = states[work.batch.target[0]]
    assert row[3 : 3 + 3 * 8].all()
    assert not row[3 + 3 * 8 : -3].any()
    assert row[-3] == 3


def test_a_sequence_without_a_target_leaves_no_trace() -> None:
    work = case([5, 9], window=4, seen=[3, 6])
    dropped = replace(work.batch, target=torch.tensor([-1, int(work.batch.target[1])]))
    _, states = replace(work, batch=dropped).run()
    _, states_of_both = work.run()
    assert torch.equal(states[work.batch.target[0]], work.batch.states[work.batch.target[0]])
    assert torch.equal(states[work.batch.target[1]], states_of_both[work.batch.target[1]])


def test_nan_and_infinity_reach_only_the_queries_that_see_them() -> None:
    for value in (NAN, float("inf")):
        work = case([30], window=4)
        work.keys_values[10, 8] = value  # a number of a value
        out, _ = work.run()
        assert out.isfinite().all(1).tolist() == [not 10 <= i <= 14 for i in range(30)]


@pytest.mark.parametrize("count", [-1.0, 0.5, 10.0, NAN, float("inf")])
def test_a_row_with_no_count_after_its_ring_is_refused(count: float) -> None:
    work = case([4], window=5, seen=[3])
    work.batch.states[work.batch.source, 3 + 5 * 12] = count
    with pytest.raises(ValueError, match="count"):
        work.run()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"offsets": torch.tensor([0, 5])}, ValueError),
        ({"offsets": torch.tensor([1, 4])}, ValueError),
        ({"source": torch.tensor([2])}, IndexError),
        ({"target": torch.tensor([-2])}, IndexError),
        ({"states": torch.zeros(2, 40)}, IndexError),
        ({"states": torch.zeros(2, 80).double()}, ValueError),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    change: dict[str, Tensor], error: type[Exception]
) -> None:
    work = case([4], window=5, seen=[3])
    batch = replace(work.batch, **change)
    before = batch.states.clone()
    with pytest.raises(error):
        cpu_attention(work.q, work.keys_values, work.residual, batch, work.attention)
    assert torch.equal(batch.states, before)
