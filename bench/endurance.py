"""Long inputs cost what short ones cost, and memory stays where it was.

`python -m bench.endurance CALLS STEPS THREADS` prints the bytes by which its own process grew;
`memory` runs it.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import get_num_threads

from bench.machine import ROOT
from bench.report import Report
from bench.samples import interleave
from bench.targets import Target
from bench.twins import Shape, Twins
from sruserve.kernels import single
from sruserve.model.network import Network

_WIDTH, _LAYERS = 512, 4
_PARTS = 10
_LONGEST_SECONDS = 1800


def long_input(report: Report, steps: int, rounds: int) -> None:
    """One sequence in one call, and in ten that carry its state over."""
    report.doing(f"{steps} steps")
    twins = Twins(Shape(steps, 1, _WIDTH, _LAYERS))
    network = twins.network(torch.float32)
    found = interleave(
        {
            "one call": _in_calls_of(steps, twins, network),
            "ten calls": _in_calls_of(steps // _PARTS, twins, network),
        },
        rounds,
    )
    case = f"{steps:,} steps of one sequence, {_LAYERS} x {_WIDTH}"
    report.measured(case, found)
    ratio = found["one call"].over(found["ten calls"]).median
    report.check(f"{case}: one call / ten calls", ratio, "x", Target(least=0.9, most=1.1))


def memory(report: Report, calls: int, steps: int) -> None:
    """How much a fresh process grows over `calls` calls, once it is warm."""
    report.doing(f"{calls} calls")
    done = subprocess.run(
        [sys.executable, "-m", "bench.endurance", str(calls), str(steps), str(get_num_threads())],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_LONGEST_SECONDS,
    )
    what = f"resident memory gained over {calls:,} calls of {steps:,} steps"
    report.check(what, int(done.stdout) / 2**20, "MiB", Target(most=1))


def _in_calls_of(steps: int, twins: Twins, network: Network) -> Callable[[], None]:
    states = network.layout.allocate(1)
    x = twins.packed
    chunks = [x[start : start + steps] for start in range(0, len(x), steps)]

    def run() -> None:
        states.zero_()
        for chunk in chunks:
            network.hidden(chunk, single(states, len(chunk)))

    return run


def _resident_bytes() -> int:
    resident = Path("/proc/self/statm").read_text().split()[1]
    return int(resident) * os.sysconf("SC_PAGE_SIZE")


def _measure(calls: int, steps: int, threads: int) -> int:
    torch.set_num_threads(threads)
    twins = Twins(Shape(steps, 1, _WIDTH, _LAYERS))
    network = twins.network(torch.float32)
    states = network.layout.allocate(1)
    batch = single(states, steps)
    for _ in range(max(10, calls // 10)):
        network.hidden(twins.packed, batch)
    before = _resident_bytes()
    for _ in range(calls):
        network.hidden(twins.packed, batch)
    return _resident_bytes() - before


if __name__ == "__main__":
    print(_measure(*map(int, sys.argv[1:])))
