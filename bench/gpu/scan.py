"""The recurrence alone: bytes/s with many channels, ns per step with few."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.gpu.checks import name
from bench.gpu.clock import captured, sets_beyond_cache
from bench.gpu.context import Bench, Ceilings
from bench.report.samples import Samples
from bench.report.targets import NO_TARGET, Target
from sruserve.kernels import Cell, RaggedBatch, scan

_LATENCY = Target(maximum=60)
_BANDWIDTH = Target(minimum=0.85)


@dataclass(frozen=True, slots=True)
class ScanShape:
    """Steps, sequences and channels of one scan."""

    steps: int
    batch: int
    width: int

    def __str__(self) -> str:
        return f"L {self.steps}, B {self.batch}, d {self.width}"

    @property
    def rows(self) -> int:
        return self.steps * self.batch

    def moved(self, itemsize: int) -> int:
        """Return the bytes moved: u (3 planes) and x read, h written, states read and written."""
        return self.rows * self.width * 5 * itemsize + self.batch * self.width * 8


class ScanInput:
    """Random inputs of one scan, and the memory for its h."""

    def __init__(self, bench: Bench, shape: ScanShape, dtype: torch.dtype) -> None:
        self.u = bench.random(shape.rows, 3 * shape.width, dtype=dtype)
        self.x = bench.random(shape.rows, shape.width, dtype=dtype)
        self.out = bench.random(shape.rows, shape.width, dtype=dtype)
        self.weight_c = bench.random(2, shape.width, dtype=torch.float32)
        self.bias = bench.random(2, shape.width, dtype=torch.float32)
        states = bench.random(shape.batch, shape.width, dtype=torch.float32)
        each = bench.arange(shape.batch)
        offsets = bench.arange(shape.batch + 1, shape.steps)
        self.batch = RaggedBatch(offsets, states, each, each)

    def run(self) -> Tensor:
        gates = (self.weight_c, self.bias)
        return scan(self.u, self.x, *gates, self.batch, 0, Cell(scale=1.25), out=self.out)


def scan_inputs(bench: Bench, shape: ScanShape, dtype: torch.dtype) -> list[ScanInput]:
    """Return inputs that together exceed the cache."""
    sets = sets_beyond_cache(shape.moved(dtype.itemsize), bench.device)
    return [ScanInput(bench, shape, dtype) for _ in range(sets)]


def scan_in_turn(bench: Bench, inputs: list[ScanInput]) -> Callable[[], object]:
    """Return a graph that scans several inputs in sequence."""

    def run() -> None:
        for each in inputs:
            each.run()

    return captured(run, bench.device)


def time_scan(bench: Bench, ceilings: Ceilings, shape: ScanShape, dtype: torch.dtype) -> Samples:
    """Measure the microseconds of a scan, and of a copy of the same number of bytes."""
    moved = shape.moved(dtype.itemsize)
    inputs = scan_inputs(bench, shape, dtype)
    sets = len(inputs)
    source = bench.random(sets, moved // 4, dtype=torch.bfloat16)
    copied = torch.empty_like(source)

    def copy() -> None:
        for each, to in zip(source, copied, strict=True):
            to.copy_(each)

    case = f"scan, {shape}, {name(dtype)}"
    candidates = {
        "scan": scan_in_turn(bench, inputs),
        "copy of as many bytes": captured(copy, bench.device),
    }
    floors = {"bytes moved / copy bandwidth": ceilings.floor_us(moved)}
    return bench.time(case, candidates, pieces=sets, floors=floors)["scan"]


def scan_timings(bench: Bench, ceilings: Ceilings) -> None:
    """Measure the recurrence."""
    _many_channels(bench, ceilings)
    _few_channels(bench, ceilings)


def _many_channels(bench: Bench, ceilings: Ceilings) -> None:
    shapes = [ScanShape(512, b, d) for b, d in ((2, 1024), (8, 1024), (16, 1024))]
    wide = [ScanShape(512, b, d) for b, d in ((32, 1024), (64, 1024), (32, 2048))]
    half = torch.bfloat16
    cases = [(shape, half, NO_TARGET) for shape in shapes]
    cases += [(shape, half, _BANDWIDTH) for shape in wide]
    cases += [(wide[0], torch.float32, NO_TARGET)]
    if bench.quick:
        cases = [(ScanShape(4, 2, 40), bench.dtype, _BANDWIDTH)]
    for shape, dtype, target in cases:
        times = time_scan(bench, ceilings, shape, dtype).median
        share = ceilings.floor_us(shape.moved(dtype.itemsize)) / times
        label = f"scan, {shape}, {name(dtype)}: bytes moved / time / copy bandwidth"
        bench.check(label, share, "x", target)


def _few_channels(bench: Bench, ceilings: Ceilings) -> None:
    """Measure ns per step; the difference of two lengths excludes the cost of the launch."""
    steps = (2, 4) if bench.quick else (512, 2048)
    sizes = [(1, 2048, bench.dtype, _LATENCY), (2, 1024, bench.dtype, _LATENCY)]
    sizes += [(1, 2048, torch.float32, NO_TARGET)]
    if bench.quick:
        sizes = [(1, 40, bench.dtype, _LATENCY)]
    for batch, width, dtype, target in sizes:
        times = []
        for length in steps:
            shape = ScanShape(length, batch, width)
            times.append(time_scan(bench, ceilings, shape, dtype).median)
            label = f"scan, {shape}, {name(dtype)}: ns/step"
            bench.check(label, times[-1] / length * 1e3, "ns", target)
        slope = (times[1] - times[0]) / (steps[1] - steps[0]) * 1e3
        label = f"scan, B {batch}, d {width}, {name(dtype)}: ns/step without the launch"
        bench.check(label, slope, "ns")
