"""The pieces of a ragged batch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sruserve.kernels import RaggedBatch


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=8), rows=st.integers(1, 12))
def test_pieces_cover_every_row_once_and_carry_the_state(lengths: list[int], rows: int) -> None:
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    count = len(lengths)
    source, target = torch.arange(count), torch.arange(count) + 100
    batch = RaggedBatch(offsets, torch.zeros(1, 1), source, target)
    covered: list[tuple[int, int]] = []  # (sequence's target, rows of it)
    begun: set[int] = set()
    end_before = 0
    for start, end, piece in batch.pieces(rows):
        assert start == end_before
        assert end - start <= rows
        end_before = end
        sizes = piece.offsets.diff().tolist()
        assert piece.offsets[0] == 0
        assert sum(sizes) == end - start
        for size, begins, ends in zip(
            sizes, piece.source.tolist(), piece.target.tolist(), strict=True
        ):
            assert begins == (ends if ends in begun else ends - 100)
            begun.add(ends)
            covered.append((ends, size))
    assert end_before == sum(lengths)
    assert begun == set(target.tolist())
    for sequence, length in enumerate(lengths):
        assert sum(size for ends, size in covered if ends == sequence + 100) == length


def test_a_sequence_that_keeps_no_state_is_not_cut() -> None:
    nowhere = torch.tensor([-1, -1])
    batch = RaggedBatch(torch.tensor([0, 2, 6]), torch.zeros(1, 1), nowhere, nowhere)
    assert len([*batch.pieces(6)]) == 1
    with pytest.raises(ValueError, match="without a target row cannot be cut"):
        list(batch.pieces(4))
