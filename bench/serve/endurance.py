"""Long inputs take the same time per step as short ones, and memory does not grow.

`python -m bench.serve.endurance CALLS STEPS THREADS` prints the bytes by which its own process
grew; `memory` runs it.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import get_num_threads

from bench.cpu.matched_models import MatchedModels, Shape
from bench.report.machine import ROOT
from bench.report.report import Report
from bench.report.samples import interleave
from bench.report.targets import Target
from sruserve.kernels import single
from sruserve.model.network import Network

_WIDTH, _LAYERS = 512, 4
_PARTS = 10
_LONGEST_SECONDS = 1800


def long_input(report: Report, steps: int, rounds: int) -> None:
    """Compare one sequence in one call with ten calls that pass its state on."""
    report.progress(f"{steps} steps")
    models = MatchedModels(Shape(steps, 1, _WIDTH, _LAYERS))
    network = models.network(torch.float32)
    samples = interleave(
        {
            "one call": _in_calls_of(steps, models, network),
            "ten calls": _in_calls_of(steps // _PARTS, models, network),
        },
        rounds,
    )
    case = f"{steps:,} steps of one sequence, {_LAYERS} x {_WIDTH}"
    report.add_case(case, samples)
    ratio = samples["one call"].over(samples["ten calls"]).median
    report.check(f"{case}: one call / ten calls", ratio, "x", Target(minimum=0.9, maximum=1.1))


def memory(report: Report, calls: int, steps: int) -> None:
    """Measure the growth of a fresh process over `calls` calls, after a warm-up."""
    report.progress(f"{calls} calls")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench.serve.endurance",
            str(calls),
            str(steps),
            str(get_num_threads()),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_LONGEST_SECONDS,
    )
    label = f"resident memory gained over {calls:,} calls of {steps:,} steps"
    report.check(label, int(done.stdout) / 2**20, "MiB", Target(maximum=1))


def _in_calls_of(steps: int, models: MatchedModels, network: Network) -> Callable[[], None]:
    states = network.layout.allocate(1)
    x = models.packed
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
    models = MatchedModels(Shape(steps, 1, _WIDTH, _LAYERS))
    network = models.network(torch.float32)
    states = network.layout.allocate(1)
    batch = single(states, steps)
    for _ in range(max(10, calls // 10)):
        network.hidden(models.packed, batch)
    before = _resident_bytes()
    for _ in range(calls):
        network.hidden(models.packed, batch)
    return _resident_bytes() - before


if __name__ == "__main__":
    print(_measure(*map(int, sys.argv[1:])))
