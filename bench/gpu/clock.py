"""Time on a device: with its own events, interleaved, and with graphs if launches are many."""

from collections.abc import Callable, Mapping
from functools import partial

import torch

from bench.report.samples import Samples, in_turn, interleave
from sruserve.kernels.graphs import GraphRecorder

_MIN_MS = 4.0  # a round of a fast candidate has many calls, far above its start and end
_MAX_CALLS = 2_000
_BEYOND_CACHE = 256 << 20  # bytes: several times the largest L2 cache
_MAX_SETS = 32


def captured(work: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Capture `work` as a graph, which repeats it without its launches; on a CPU return `work`."""
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
    """Time the candidates as `bench.report.samples.interleave` does, on the device's own clock.

    Host time counts only if the device waits for it. factor: units in a second.
    """
    if device.type != "cuda":
        return interleave(candidates, rounds, unit, factor)
    calls = {name: _calls_in_a_round(call) for name, call in candidates.items()}
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds):
        for name in in_turn(list(candidates), turn):
            seconds = _seconds(candidates[name], calls[name])
            samples[name].append(seconds / calls[name] * factor)
    return {name: Samples(tuple(values), unit) for name, values in samples.items()}


def sets_beyond_cache(nbytes: int, device: torch.device) -> int:
    """Return the number of inputs of `nbytes` that, used in turn, exceed every GPU cache."""
    if device.type != "cuda":
        return 1
    return max(2, min(_MAX_SETS, -(-_BEYOND_CACHE // max(nbytes, 1))))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _replay(replay: Callable[[], object], _work: Callable[[], object]) -> None:
    replay()  # the argument `_work` owns the memory that the graph reads


def _calls_in_a_round(call: Callable[[], object]) -> int:
    """Return the number of calls that take long enough to time; also warms the candidate up."""
    _seconds(call, 2)
    seconds = _seconds(call, 2) / 2
    return max(1, min(_MAX_CALLS, round(_MIN_MS / 1e3 / max(seconds, 1e-7))))


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
