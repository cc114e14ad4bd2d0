"""Time on a device: by its own events, in turns, and through graphs where launches are many."""

from collections.abc import Callable, Mapping
from functools import partial

import torch

from bench.samples import Samples, in_turn, interleave
from sruserve.kernels.graphs import GraphRecorder

_LEAST_MS = 4.0  # a round of a fast candidate is many calls, far above what starts and ends it
_MOST_CALLS = 2_000
_BEYOND_CACHE = 256 << 20  # several times the largest L2
_MOST_SETS = 32


def captured(work: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The same work on the same memory without its launches; on a CPU the work itself."""
    if device.type != "cuda":
        return work

    def run() -> None:
        work()

    return partial(_replay, GraphRecorder(device).record(run), work)


def in_turns(
    candidates: Mapping[str, Callable[[], object]],
    device: torch.device,
    rounds: int,
    unit: str = "us",
    factor: float = 1e6,
) -> dict[str, Samples]:
    """Time the candidates as `bench.samples.interleave` does, on the device's own clock.

    What a candidate's host does counts where the device has to wait for it. factor: from seconds.
    """
    if device.type != "cuda":
        return interleave(candidates, rounds, unit, factor)
    calls = {name: _calls_in_a_round(call) for name, call in candidates.items()}
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds):
        for name in in_turn(list(candidates), turn):
            seconds = _seconds(candidates[name], calls[name])
            found[name].append(seconds / calls[name] * factor)
    return {name: Samples(tuple(values), unit) for name, values in found.items()}


def sets_beyond_cache(nbytes: int, device: torch.device) -> int:
    """How many inputs of so many bytes in turn no cache of a GPU can hold."""
    if device.type != "cuda":
        return 1
    return max(2, min(_MOST_SETS, -(-_BEYOND_CACHE // max(nbytes, 1))))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _replay(replay: Callable[[], object], _work: Callable[[], object]) -> None:
    replay()  # `_work` is here because it owns the memory that the graph reads


def _calls_in_a_round(call: Callable[[], object]) -> int:
    """How many calls take long enough to be timed; makes the candidate warm."""
    _seconds(call, 2)
    seconds = _seconds(call, 2) / 2
    return max(1, min(_MOST_CALLS, round(_LEAST_MS / 1e3 / max(seconds, 1e-7))))


def _seconds(call: Callable[[], object], calls: int) -> float:
    start: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
