"""Whole inputs as graphs: padding and replays change no bit, and graphs are few and bounded."""

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sruserve.kernels import Cell, RaggedBatch, captures, input_graphs
from sruserve.kernels.devices import CPU
from sruserve.kernels.graphs import Eager, GraphBackend, GraphRecorder
from sruserve.kernels.input_graphs import (
    USES_BEFORE_CAPTURE,
    InputGraphs,
    row_bucket,
    sequence_bucket,
)
from sruserve.kernels.reference.scan import reference_scan
from tests.cuda_stand_in import GPU, StandInCuda
from tests.kernels.test_graphs import TapeRecorder

WIDTH = 6
BEFORE = USES_BEFORE_CAPTURE + 1  # the last of these captures


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> StandInCuda:
    monkeypatch.setattr(captures, "_capture_streams", {})
    return StandInCuda(monkeypatch)


def some_batch(lengths: list[int], states: Tensor, seed: int) -> tuple[Tensor, RaggedBatch]:
    g = torch.Generator().manual_seed(seed)
    # Row 0 is always one of them, so that a write of no sequence would be seen.
    rows = torch.cat((torch.zeros(1, dtype=torch.int64), 1 + torch.randperm(19, generator=g)))
    source, target = rows[: len(lengths)].clone(), rows[: len(lengths)].clone()
    source[::3], target[1::4] = -1, -1
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    inputs = torch.randn(sum(lengths), 3 * WIDTH, generator=g)
    return inputs, RaggedBatch(offsets, states, source, target)


def recurrence(inputs: Tensor, batch: RaggedBatch) -> Tensor:
    gates = torch.arange(2.0 * WIDTH).view(2, WIDTH) / 9 - 0.5
    return reference_scan(inputs, None, gates, gates, batch, 0, Cell())


def elements(inputs: Tensor, batch: RaggedBatch) -> Tensor:
    """Advance states by the sums of the sequences, in operations that a tape can repeat."""
    sequence = torch.searchsorted(batch.offsets, torch.arange(len(inputs)), right=True) - 1
    known = sequence < batch.sequences
    sums = torch.zeros(batch.sequences + 1, WIDTH).index_add_(
        0, sequence.clamp(max=batch.sequences), inputs[:, :WIDTH].where(known.unsqueeze(1), 0.0)
    )[:-1]
    start = batch.states[batch.source.clamp(min=0)].where((batch.source >= 0).unsqueeze(1), 0.0)
    # A row that nobody has takes what is dropped.
    batch.states.index_copy_(0, batch.target % len(batch.states), start + sums)
    return inputs[:, :WIDTH] * 2


def on_cpu(run: Callable[[Tensor, RaggedBatch], Tensor], recorder: GraphBackend) -> InputGraphs:
    return InputGraphs(run, CPU, 1024, recorder)


@pytest.mark.parametrize(
    ("run", "recorder"),
    [(recurrence, Eager), (elements, Eager), (elements, TapeRecorder)],  # a tape notes no loops
)
def test_padding_and_replays_change_no_bit_and_no_other_state(
    run: Callable[[Tensor, RaggedBatch], Tensor], recorder: Callable[[], GraphBackend]
) -> None:
    graphs, states = on_cpu(run, recorder()), torch.zeros(21, WIDTH)
    replayed = 0
    for turn, lengths in enumerate([[7, 0, 30], [40], [9, 9, 9, 9], [1, 1, 35], [2, 41]] * 3):
        states.copy_(torch.arange(21.0 * WIDTH).view(21, WIDTH) / 50)
        states[-1] = 0  # the row that nobody has
        inputs, batch = some_batch(lengths, states[:-1] if run is recurrence else states, turn)
        whole = RaggedBatch(batch.offsets, batch.states.clone(), batch.source, batch.target)
        expected = run(inputs, whole)
        result = graphs.run(inputs, batch)
        if result is None:
            continue
        replayed += 1
        assert torch.equal(result, expected)
        assert torch.equal(batch.states[:20], whole.states[:20])
    assert replayed > 6


def test_a_bucket_is_at_most_half_as_large_again_as_what_it_holds() -> None:
    for rows in range(1, 5000):
        assert rows <= row_bucket(rows) <= max(input_graphs.MIN_ROWS, rows * 3 / 2)
    assert [sequence_bucket(n) for n in (1, 2, 4, 5, 16, 17, 1024)] == [1, 4, 4, 16, 16, 64, 1024]


class Launches:
    """A network whose work is one launch, in the stand-in for CUDA."""

    def __init__(self, cuda: StandInCuda, max_rows: int = 1024, **bounds: int) -> None:
        self.cuda, self.fails_at, self.runs = cuda, 0, 0
        self.states = torch.zeros(20, WIDTH)
        self.graphs = InputGraphs(self.run, CPU, max_rows, GraphRecorder(GPU), **bounds)

    def run(self, inputs: Tensor, batch: RaggedBatch) -> Tensor:
        self.runs += 1
        self.cuda.launch(f"{len(inputs)} rows")
        if self.runs == self.fails_at:
            raise MemoryError(f"run {self.runs}")
        return inputs * 2

    def ask(self, rows: int, times: int = 1) -> Tensor | None:
        for turn in range(times):
            before, (inputs, batch) = self.runs, some_batch([rows], self.states, turn)
            result = self.graphs.run(inputs, batch)
            if self.runs > before:  # the stand-in replays names, and not the work
                assert result is not None
                assert torch.equal(result, inputs * 2)
        return result

    def captured(self) -> list[int]:
        return [key[0] for key in self.graphs._buckets]


def test_a_frequent_size_is_captured_once_and_replayed(cuda: StandInCuda) -> None:
    network = Launches(cuda)
    assert network.ask(40, USES_BEFORE_CAPTURE) is None
    assert network.ask(40) is not None
    assert network.runs == 2, "once for the results, and once for the capture"
    cuda.synchronize()
    network.ask(33, 3)
    assert network.runs == 2
    assert cuda.running == ["48 rows"] * 3, "the replays of the graph"


def test_the_graphs_used_longest_ago_make_room_after_their_replays_have_ended(
    cuda: StandInCuda,
) -> None:
    network, running = Launches(cuda, max_rows=32 + 48 + 64), list[list[str]]()
    for rows in (32, 48, 64):
        network.ask(rows, BEFORE)
    network.ask(32)
    for bucket in network.graphs._buckets.values():
        graph = bucket.replay.__self__  # type: ignore[attr-defined]
        weakref.finalize(graph, lambda: running.append(list(cuda.running)))
    del bucket, graph
    assert cuda.running
    network.ask(96, BEFORE)
    assert network.captured() == [32, 96]
    assert running == [[], []]


def test_graphs_are_few_and_captures_end_one_day(cuda: StandInCuda) -> None:
    network = Launches(cuda, max_graphs=2, max_captures=4)
    for rows in (32, 48, 64, 96, 128, 192):
        network.ask(rows, BEFORE)
        assert len(network.captured()) <= 2
    assert network.captured() == [64, 96]
    assert network.ask(64) is not None
    assert network.ask(192) is None
    assert network.ask(1025, BEFORE) is None, "more rows than all graphs together may have"


def test_a_run_that_fails_is_the_callers_and_leaves_no_graph(cuda: StandInCuda) -> None:
    network = Launches(cuda)
    network.fails_at = 1
    with pytest.raises(MemoryError, match="run 1"):
        network.ask(40, BEFORE)
    assert not network.captured()
    assert network.ask(40) is not None, "the next one captures"


def test_a_capture_that_fails_gives_the_results_and_is_the_last_one(
    cuda: StandInCuda, caplog: pytest.LogCaptureFixture
) -> None:
    network = Launches(cuda)
    network.ask(64, BEFORE)
    network.fails_at = network.runs + 2
    assert network.ask(40, BEFORE) is not None
    assert "cannot be captured" in caplog.text
    assert network.captured() == [64]
    assert network.ask(40, BEFORE) is None
    assert network.ask(60) is not None, "those that exist go on"


def test_inputs_that_are_on_the_device_already_have_no_graph(cuda: StandInCuda) -> None:
    network = Launches(cuda)
    inputs, batch = some_batch([40], network.states, 0)
    for _ in range(BEFORE):
        assert network.graphs.run(inputs.to("meta"), batch) is None
    assert not network.captured()


def test_other_states_have_a_graph_of_their_own(cuda: StandInCuda) -> None:
    network = Launches(cuda)
    network.ask(40, BEFORE)
    network.states = torch.zeros(20, WIDTH)
    assert network.ask(40) is None
