"""Side streams on a GPU: their work is ordered with the caller's, also when it fails."""

import pytest

from sruserve.kernels import captures
from sruserve.kernels.side_stream import CudaSideStream
from tests.cuda_stand_in import GPU, StandInCuda


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> StandInCuda:
    monkeypatch.setattr(captures, "_capture_streams", {})
    return StandInCuda(monkeypatch)


def test_work_follows_that_of_its_caller_and_the_caller_can_wait_for_it(cuda: StandInCuda) -> None:
    side_stream = CudaSideStream(GPU)
    cuda.launch("a product")
    event = side_stream.run(lambda: cuda.launch("its recurrence"))
    assert cuda.running == ["a product", "its recurrence"]
    side_stream.wait_event(event)
    cuda.current_stream().synchronize()
    assert not cuda.running


def test_work_that_fails_midway_has_ended_when_its_memory_is_used_again(cuda: StandInCuda) -> None:
    def fail() -> None:
        cuda.launch("its first kernel")
        raise ValueError("the second one does not fit")

    side_stream = CudaSideStream(GPU)
    cuda.launch("a product")
    with pytest.raises(ValueError, match="does not fit"):
        side_stream.run(fail)
    assert not cuda.running
    assert cuda.current_stream() is cuda.default_stream()


def test_work_whose_event_cannot_be_made_has_ended_too(
    cuda: StandInCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_event() -> None:
        raise MemoryError

    side_stream = CudaSideStream(GPU)
    monkeypatch.setattr("torch.cuda.Event", no_event)
    with pytest.raises(MemoryError):
        side_stream.run(lambda: cuda.launch("a copy"))
    assert not cuda.running
