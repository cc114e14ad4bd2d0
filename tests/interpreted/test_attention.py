"""The attention in Triton computes what its definition does, with the same bits for any split."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.kernels.reference.attention import Attention, reference_attention
from sruserve.kernels.triton.attention import triton_attention
from sruserve.kernels.triton.tiles import AttentionTile

COLUMN = 3
SMALL = AttentionTile(16, 16, 16, 16, 4)  # several blocks of keys, features and values
ONE_BLOCK = AttentionTile(16, 16, 32, 32, 4)  # of features: quicker


@dataclass(frozen=True)
class Case:
    """The arguments of a call."""

    q: Tensor
    keys_values: Tensor
    residual: Tensor
    memory: Tensor | None
    batch: RaggedBatch
    attention: Attention

    def run(self, one_step: bool = False, tile: AttentionTile | None = ONE_BLOCK) -> Tensor:
        inputs = (self.q, self.keys_values, self.residual, self.batch, self.attention, self.memory)
        return triton_attention(*inputs, one_step=one_step, tile=tile)

    def expected(self) -> tuple[Tensor, Tensor]:
        batch = replace(self.batch, states=self.batch.states.clone())
        inputs = (self.q, self.keys_values, self.residual, batch, self.attention, self.memory)
        return reference_attention(*inputs), batch.states


def case(
    lengths: Sequence[int],
    seen: Sequence[int],
    window: int | None,
    heads: int = 1,
    size: int = 6,
    memory: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Random numbers. seen: positions before each stream's call; -1 begins with zeros."""
    g = torch.Generator().manual_seed(len(lengths))
    width, rows, streams = heads * size, sum(lengths), len(lengths)
    depth = (4 if memory else 2) * width
    ring = (window or 0) * depth
    states = torch.randn(2 * streams + 1, COLUMN + ring + 1 + 2, generator=g).to(dtype).float()
    order = torch.randperm(2 * streams, generator=g)
    source, target = order[:streams].clone(), order[streams:].clone()
    for b, count in enumerate(seen):
        if window is not None and count >= 0:
            stored = count if count < 2 * window else window + count % window
            states[source[b], COLUMN + ring] = stored
        source[b] = source[b] if count >= 0 else -1
        if b % 3 == 1 and count >= 0:
            target[b] = source[b]  # in place
        if b % 4 == 3:
            target[b] = -1

    def random(columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=g).to(dtype)

    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return Case(
        random(width),
        random(2 * width),
        random(width),
        random(2 * width) if memory else None,
        RaggedBatch(offsets, states, source, target),
        Attention(window=window, heads=heads, alpha=0.7, column=COLUMN),
    )


@settings(max_examples=6, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 37), st.integers(-1, 90)), min_size=1, max_size=4),
    st.sampled_from([1, 2, 5, 16, 19, 33, None]),
    st.sampled_from([(1, 6), (2, 20), (3, 16)]),
    st.booleans(),
)
def test_any_streams_get_what_the_definition_says(
    streams: list[tuple[int, int]], window: int | None, heads: tuple[int, int], memory: bool
) -> None:
    lengths, seen = zip(*streams, strict=True)
    work = case(lengths, seen, window, *heads, memory=memory)
    expected, states = work.expected()
    torch.testing.assert_close(work.run(tile=SMALL), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(work.batch.states, states)


@pytest.mark.parametrize(("window", "memory"), [(5, True), (20, False)])
def test_one_step_of_many_streams_is_a_batch_of_sequences_of_one_step(
    window: int, memory: bool
) -> None:
    work = case([1] * 6, [-1, 17, 3, 5, 44, 90], window, 2, 10, memory)
    again = replace(work, batch=replace(work.batch, states=work.batch.states.clone()))
    expected, states = work.expected()
    stepped = work.run(one_step=True)
    torch.testing.assert_close(stepped, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(work.batch.states, states)
    assert torch.equal(again.run(), stepped)


@pytest.mark.parametrize(("cut", "memory"), [(7, True), (16, False), (30, True)])
def test_a_split_of_time_changes_no_bit(cut: int, memory: bool) -> None:
    work = case([41], [23], 19, 1, 20, memory)
    whole_states = work.batch.states.clone()
    batch = replace(work.batch, states=whole_states)
    whole = replace(work, batch=batch).run()
    parts, source = [], work.batch.source
    for begin, end in ((0, cut), (cut, 41)):
        own = RaggedBatch(
            torch.tensor([0, end - begin]), work.batch.states, source, work.batch.target
        )
        rows = slice(begin, end)
        part = replace(
            work,
            q=work.q[rows],
            keys_values=work.keys_values[rows],
            residual=work.residual[rows],
            memory=None if work.memory is None else work.memory[rows],
            batch=own,
        )
        parts.append(part.run())
        source = work.batch.target
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(work.batch.states, whole_states)


def test_company_changes_no_bit() -> None:
    lengths, seen = [20, 0, 1, 3], [3, 4, -1, 50]
    work = case(lengths, seen, 19, 1, 20)
    together, edges = work.run(), work.batch.offsets.tolist()
    for b in range(4):
        rows = slice(edges[b], edges[b + 1])
        fresh = case(lengths, seen, 19, 1, 20)
        own = replace(
            fresh.batch,
            offsets=torch.tensor([0, lengths[b]]),
            source=fresh.batch.source[b : b + 1],
            target=fresh.batch.target[b : b + 1],
        )
        alone = Case(
            fresh.q[rows], fresh.keys_values[rows], fresh.residual[rows], None, own, fresh.attention
        )
        assert torch.equal(alone.run(), together[rows])


def test_in_half_precision_it_agrees_to_rounding() -> None:
    work = case([20, 1], [3, 90], 19, 2, 10, dtype=torch.float16)
    expected, states = work.expected()
    torch.testing.assert_close(work.run(tile=None), expected, rtol=0.005, atol=0.005)
    assert torch.equal(work.batch.states, states)


def test_tensors_that_do_not_fit_are_refused_by_name() -> None:
    work = case([3, 1], [0, 2], 5)
    for change, message in (
        ({"keys_values": work.q}, "keys_values must have shape"),
        ({"residual": work.residual.half()}, "residual must have shape"),
        ({"attention": Attention(window=5, heads=4)}, "multiple of 4"),
        ({"attention": Attention(window=900)}, "must lie within states"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(work, **change).run()
