"""A decoder's attention: the kernel agrees with the definition, wherever the rows are."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sruserve.kernels.decoder_attention import (
    DecoderAttention,
    KeyRows,
    cpu_decoder_attention,
)
from sruserve.kernels.reference.decoder_attention import reference_decoder_attention
from tests.kernels.instruction_sets import EACH_SET


@dataclass(frozen=True)
class Case:
    """The arguments of one call."""

    q: Tensor
    rows: KeyRows
    attention: DecoderAttention

    def run(self, reference: bool = False) -> tuple[Tensor, Tensor]:
        """Returns the outputs and the shares."""
        run = reference_decoder_attention if reference else cpu_decoder_attention
        shares = torch.full((len(self.q), 48), torch.nan)
        return run(self.q, self.rows, self.attention, shares), shares


def case(heads: int = 2, size: int = 5, own: bool = True, additive: bool = False) -> Case:
    """Queries of several tables: none, one and many rows, in order or picked."""
    generator = torch.Generator().manual_seed(heads * size)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    width = heads * size
    tables = [random(rows, 3 * width + 1) for rows in (40, 1, 17)]
    table = torch.tensor([0, 1, 2, 0, 2, 1])
    counts = torch.tensor([40, 1, 0, 7, 17, 1])
    index = None
    if own:  # what is not read is out of range
        index = torch.full((6, 41), 1 << 30, dtype=torch.int32)
        for query, (number, count) in enumerate(zip(table, counts, strict=True)):
            picked = torch.randint(len(tables[number]), (int(count),), generator=generator)
            index[query, : int(count)] = picked
    rows = KeyRows(tables, table, counts, index, random(6, 3 * width + 1) if own else None)
    attention = DecoderAttention(
        keys=1,
        values=1 + 2 * width,
        width=width,
        heads=heads,
        scale=0.7,
        additive=random(width) if additive else None,
    )
    return Case(random(6, width), rows, attention)


SHAPES = pytest.mark.parametrize(
    ("heads", "size", "own", "additive"),
    [(1, 70, True, False), (3, 5, False, False), (2, 32, True, False), (1, 33, False, True)],
)


@EACH_SET
@SHAPES
def test_it_agrees_with_the_definition(heads: int, size: int, own: bool, additive: bool) -> None:
    work = case(heads, size, own, additive)
    for result, expected in zip(work.run(), work.run(reference=True), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


@EACH_SET
@SHAPES
def test_a_query_has_the_same_bits_alone_and_with_its_rows_elsewhere(
    heads: int, size: int, own: bool, additive: bool
) -> None:
    work = case(heads, size, own, additive)
    together, shares = work.run()
    for query in range(len(work.q)):
        rows = work.rows
        alone = KeyRows(
            [rows.of(query)[: int(rows.counts[query])].clone()],
            torch.tensor([0]),
            rows.counts[query : query + 1],
            None,
            None if rows.own is None else rows.own[query : query + 1],
        )
        result, own_shares = Case(work.q[query : query + 1], alone, work.attention).run()
        assert torch.equal(result[0], together[query])
        assert torch.equal(own_shares[0], shares[query])


def test_threads_change_no_bits() -> None:
    work, before = case(4, 64), torch.get_num_threads()
    many = KeyRows(
        work.rows.tables,
        work.rows.table.repeat(100),
        work.rows.counts.repeat(100),
        None,
        None,
    )
    results = []
    try:
        for threads in (1, 4):
            torch.set_num_threads(threads)
            results.append(Case(work.q.repeat(100, 1), many, work.attention).run())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_a_query_that_sees_nothing_gets_zeros() -> None:
    out, shares = case(own=False).run()
    assert not out[2].any()
    assert not shares[2].any()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"counts": torch.tensor([41, 1, 0, 7, 17, 1])}, IndexError, "rows of its table"),
        ({"counts": torch.tensor([-1, 1, 0, 7, 17, 1])}, IndexError, "rows of its table"),
        ({"counts": torch.tensor([40, 1, 0, 7, 17, 1]).int()}, ValueError, "shape or dtype"),
        ({"own": torch.zeros(6, 3)}, ValueError, "shape or dtype"),
        ({"own": torch.zeros(6, 62).T[:31].T}, ValueError, "contiguous"),
        ({"own": torch.zeros(6, 31).double()}, ValueError, "float32"),
    ],
)
def test_what_does_not_fit_is_refused(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    work = case(own=False)
    with pytest.raises(error, match=message):
        replace(work, rows=replace(work.rows, **changes)).run()


def test_queries_of_another_width_or_columns_outside_of_a_row_are_refused() -> None:
    work = case(own=False)
    for changes in ({"keys": 22}, {"values": -1}, {"heads": 3}, {"additive": torch.zeros(10)}):
        with pytest.raises(ValueError, match="shape or dtype"):
            replace(work, attention=replace(work.attention, **changes)).run()
    with pytest.raises(ValueError, match="shape or dtype"):
        replace(work, q=work.q[:, :8].contiguous()).run()


def test_a_row_outside_of_its_table_is_refused() -> None:
    work = case()
    assert work.rows.index is not None
    for row in (-1, 40):
        index = work.rows.index.clone()
        index[0, 39] = row
        with pytest.raises(IndexError, match="rows of its table"):
            replace(work, rows=replace(work.rows, index=index)).run()
