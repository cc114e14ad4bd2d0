"""Several engines of one process on one GPU: none disturbs the graphs that another captures."""

import threading
from collections.abc import Callable

import pytest
import torch

from sruserve.kernels import captures
from sruserve.kernels.captures import new_stream
from sruserve.kernels.devices import finish_work, use_own_stream
from sruserve.kernels.graphs import GraphRecorder
from sruserve.kernels.oom import release_cached
from tests.cuda_stand_in import GPU, STREAMS, Graph, StandInCuda


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> StandInCuda:
    monkeypatch.setattr(captures, "_capture_streams", {})
    return StandInCuda(monkeypatch)


def captured_beside(cuda: StandInCuda, work: Callable[[], object]) -> Graph:
    """The graph of a capture in whose middle another engine does `work`."""
    is_capturing, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        torch.cuda.set_stream(new_stream(GPU))
        cuda.launch("a step of another engine")
        assert is_capturing.wait(60)
        try:
            work()
        except BaseException as error:
            errors.append(error)

    other = threading.Thread(target=run, daemon=True)
    runs = 0

    def step() -> None:
        nonlocal runs
        runs += 1
        cuda.launch("first")
        if runs == 2:  # the first run compiles, the second one is captured
            is_capturing.set()
            other.join(0.1)  # time to do what has to wait, in vain
        cuda.launch("second")

    other.start()
    replay = GraphRecorder(GPU).record(step)
    other.join(60)
    assert not other.is_alive()
    assert not errors, errors
    graph = replay.__self__  # type: ignore[attr-defined]
    assert isinstance(graph, Graph)
    return graph


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(lambda: finish_work(GPU), id="finishes its work"),
        pytest.param(lambda: use_own_stream(GPU), id="begins"),
        pytest.param(lambda: release_cached(GPU), id="releases memory"),
        pytest.param(lambda: GraphRecorder(GPU).record(lambda: None), id="captures"),
    ],
)
def test_a_capture_stays_whole_while_another_engine(
    cuda: StandInCuda, work: Callable[[], object]
) -> None:
    assert captured_beside(cuda, work).launches == ["first", "second"]


def test_no_engine_is_given_the_stream_of_captures_however_many_there_are(
    cuda: StandInCuda,
) -> None:
    streams = [new_stream(GPU) for _ in range(2 * STREAMS)]
    assert len(set(map(id, streams))) == STREAMS - 1

    def launches() -> None:
        for stream in streams:
            torch.cuda.set_stream(stream)
            cuda.launch("of another model")

    assert captured_beside(cuda, launches).launches == ["first", "second"]


def test_a_lost_device_is_reported_and_a_healthy_one_is_waited_for(cuda: StandInCuda) -> None:
    cuda.launch("a step")
    assert finish_work(GPU)
    assert not cuda.running
    cuda.is_lost = True
    assert not finish_work(GPU)


def test_an_engine_waits_for_the_weights_before_it_leaves_the_default_stream(
    cuda: StandInCuda,
) -> None:
    cuda.launch("a weight")
    use_own_stream(GPU)
    assert not cuda.running
    cuda.launch("a step")
    assert cuda.default_stream().running == []
