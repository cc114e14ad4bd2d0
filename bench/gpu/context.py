"""The context of every part of the GPU benchmark: the device, its peak rates and the report."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.gpu.clock import in_turns
from bench.report.report import Report
from bench.report.samples import Samples
from bench.report.targets import NO_TARGET, Target


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The device's peak rates, measured in this run.

    bytes_per_s: bytes read plus bytes written of a large copy, per second.
    flops: operations per second of a large bfloat16 product.
    """

    bytes_per_s: float
    flops: float

    def floor_us(self, nbytes: float, flops: float = 0.0) -> float:
        """Return the minimum time, in µs, for a number of bytes and operations."""
        return max(nbytes / self.bytes_per_s, flops / self.flops) * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One run. quick: tiny shapes, whose figures mean nothing. dtype: the models' compute dtype."""

    report: Report
    device: torch.device
    dtype: torch.dtype
    rounds: int
    quick: bool

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def random(self, *shape: int, dtype: torch.dtype | None = None, spread: float = 1.0) -> Tensor:
        """Return normal numbers on the device. Zeros would be faster than any real input."""
        numbers = torch.empty(shape, dtype=dtype or self.dtype, device=self.device)
        return numbers.normal_(std=spread)

    def arange(self, count: int, step: int = 1) -> Tensor:
        return torch.arange(0, count * step, step, device=self.device)

    def time(
        self,
        case: str,
        candidates: Mapping[str, Callable[[], object]],
        *,
        pieces: int = 1,
        floors: Mapping[str, float] | None = None,
    ) -> dict[str, Samples]:
        """Time candidates in turn and report them, in microseconds.

        pieces: number of pieces in one call; times are those of one piece. floors: by name.
        """
        self.report.progress(case)
        samples = in_turns(candidates, self.device, self.rounds, "us", 1e6 / pieces)
        self.add_case(case, samples, floors or {}, "us")
        return samples

    def add_case(
        self,
        case: str,
        samples_by_name: Mapping[str, Samples],
        floors: Mapping[str, float],
        unit: str,
    ) -> None:
        """Report samples, and their floors below them."""
        below = {f"floor: {name}": Samples((value,), unit) for name, value in floors.items()}
        self.report.add_case(case, {**samples_by_name, **below})

    def check(self, label: str, value: float, unit: str, target: Target = NO_TARGET) -> None:
        """Record a figure, with its target if it has one."""
        self.report.check(label, value, unit, target)
