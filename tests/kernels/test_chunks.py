"""Chunks of time: any plan gives the whole batch's results, in the order of its side stream."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sruserve.kernels import Cell, CellLayer, Kind, Norm, RaggedBatch, make_linear
from sruserve.kernels.chunks import chunk_rows, plan, run_layers
from sruserve.kernels.side_stream import InlineStream, SideStream, StreamEvent

WIDTH = 24


class Late:
    """A side stream that works only when somebody waits for it; without a wait one reads NaN."""

    def __init__(self) -> None:
        self._queue: list[Callable[[], object]] = []
        self.longest_queue = 0

    def run(self, work: Callable[[], object]) -> StreamEvent:
        self._queue.append(work)
        self.longest_queue = max(self.longest_queue, len(self._queue))
        return _LateEvent(self, work)

    @property
    def idle(self) -> bool:
        return not self._queue

    def wait_event(self, event: StreamEvent) -> None:
        event.wait()

    def finish(self, work: Callable[[], object]) -> None:
        """Run the queue up to some work."""
        while work in self._queue:
            self._queue.pop(0)()


class _LateEvent:
    def __init__(self, stream: Late, work: Callable[[], object]) -> None:
        self._stream, self._work = stream, work

    def done(self) -> bool:
        return self._stream.idle

    def wait(self) -> None:
        self._stream.finish(self._work)


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: _poisoned(empty(*size, **options)))


def _poisoned(tensor: Tensor) -> Tensor:
    return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor


def layers(norm_after: bool = False) -> list[CellLayer]:
    g = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=g)

    def layer(column: int, width_in: int) -> CellLayer:
        blocks = 3 if width_in == WIDTH else 4
        weight = random(blocks * WIDTH, width_in) / width_in**0.5
        return CellLayer(
            linear=make_linear(weight, None, torch.float32),
            cell=Cell(blocks=blocks),
            weight_c=random(2, WIDTH),
            bias=random(2, WIDTH),
            column=column,
            highway_is_input=blocks == 3,
            norm=Norm(random(WIDTH), random(WIDTH)) if norm_after else None,
            norm_after=norm_after,
        )

    window = make_linear(random(2 * WIDTH, 2 * WIDTH), random(2 * WIDTH), torch.float32)
    return [
        layer(0, 16),
        layer(WIDTH, WIDTH),
        # Its `project` has state, too.
        CellLayer(
            linear=window,
            cell=Cell(kind=Kind.QRNN, blocks=2),
            column=2 * WIDTH,
            previous=3 * WIDTH,
        ),
        layer(4 * WIDTH, WIDTH),
    ]


def batch(lengths: list[int], dropped: bool = False) -> RaggedBatch:
    n = len(lengths)
    source = torch.arange(n) * 2
    target = source + 1
    source[1:2] = -1
    target[:1] = source[:1]
    if dropped:
        target[-1] = -1
    states = torch.randn(2 * n, 5 * WIDTH, generator=torch.Generator().manual_seed(1))
    return RaggedBatch(torch.tensor([0, *lengths]).cumsum(0), states, source, target)


def run(
    x: Tensor, whole: RaggedBatch, rows: int, side_stream: SideStream, norm_after: bool = False
) -> tuple[Tensor, Tensor, int]:
    """Return all outputs in packed order, the states after the run, and the number of chunks."""
    fresh = replace(whole, states=whole.states.clone())
    planned = plan(fresh, rows)
    moved = x if planned.order is None else x[planned.order]
    parts = [moved[first:end] for first, end, _ in planned.chunks]
    batches = [batch for *_, batch in planned.chunks]
    h = torch.cat(run_layers(layers(norm_after), parts, batches, side_stream))
    return h[planned.places(torch.arange(len(x)))], fresh.states, len(parts)


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any),
    rows=st.integers(1, 60),
    norm_after=st.booleans(),
    side_stream=st.sampled_from([InlineStream, Late]),
)
def test_any_cut_along_time_gives_the_same_bits(
    lengths: list[int], rows: int, norm_after: bool, side_stream: type[SideStream]
) -> None:
    whole = batch(lengths)
    x = torch.randn(sum(lengths), 16, generator=torch.Generator().manual_seed(2))
    expected_h, expected_states, _ = run(x, whole, 1 << 20, InlineStream(), norm_after)
    h, states, _ = run(x, whole, rows, side_stream(), norm_after)
    assert torch.equal(h, expected_h)
    assert torch.equal(states, expected_states)


def test_products_go_ahead_while_recurrences_are_still_to_run() -> None:
    whole, side_stream = batch([64] * 4), Late()
    x = torch.randn(256, 16)
    *_, chunks = run(x, whole, 64, side_stream)
    assert chunks == 4
    assert side_stream.longest_queue >= 4


def test_chunks_are_about_as_long_as_asked_and_as_wide_as_the_batch() -> None:
    planned = plan(batch([512] * 32), 4096)
    assert [end - first for first, end, _ in planned.chunks] == [4096] * 4
    assert all(part.sequences == 32 for *_, part in planned.chunks)


def test_a_sequence_that_has_ended_takes_no_part_in_later_chunks() -> None:
    planned = plan(batch([3, 0, 40, 5]), 12)
    first, *later = [part for *_, part in planned.chunks]
    assert first.sequences == 4  # the empty one too: its state is carried over here
    assert [part.sequences for part in later] == [1] * len(later)
    assert all(part.source.tolist() == part.target.tolist() == [5] for part in later)


def test_a_batch_is_not_cut_where_a_cut_sequence_has_nowhere_to_leave_its_state() -> None:
    assert len(plan(batch([40, 40], dropped=True), 20).chunks) == 1
    assert len(plan(batch([60, 4], dropped=True), 20).chunks) > 1


def test_a_batch_that_runs_backwards_too_is_one_chunk() -> None:
    planned = plan(batch([512] * 32), 4096, one_chunk=True)
    assert planned.order is None
    assert len(planned.chunks) == 1


def test_a_wide_stack_gets_chunks_of_fewer_rows() -> None:
    def stack(width: int) -> list[CellLayer]:
        weight, gates = torch.zeros(3 * width, 8), torch.zeros(2, width)
        product = make_linear(weight, None, torch.float32)
        return [CellLayer(linear=product, cell=Cell(), weight_c=gates, bias=gates, column=0)]

    assert chunk_rows(stack(512)) == 8192
    assert chunk_rows(stack(2048)) == 2048
    assert chunk_rows([*stack(512), *stack(2048)]) == 2048


def test_a_failure_leaves_nothing_running_that_memory_is_taken_from() -> None:
    """Out of memory in the third product: started work ends before the error is raised."""
    whole, side_stream = batch([64] * 4), Late()
    planned = plan(whole, 64)
    products = []

    def product(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        products.append(len(x))
        if len(products) == 3:
            raise torch.OutOfMemoryError
        return torch.zeros(len(x), 3 * WIDTH)

    product.outputs = 3 * WIDTH  # type: ignore[attr-defined]
    gates = torch.zeros(2, WIDTH)
    layer = CellLayer(linear=product, cell=Cell(), weight_c=gates, bias=gates, column=0)  # type: ignore[arg-type]
    parts = [torch.zeros(end - first, WIDTH) for first, end, _ in planned.chunks]
    with pytest.raises(torch.OutOfMemoryError):
        run_layers([layer], parts, [each for *_, each in planned.chunks], side_stream)
    assert side_stream.longest_queue == 2
    assert side_stream.idle
