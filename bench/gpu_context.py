"""What every part of the GPU bench is given: where it runs, what the device can do, who is told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.gpu_clock import in_turns
from bench.report import Report
from bench.samples import Samples
from bench.targets import TOLD, Target


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the device was measured to do at best, in this run.

    bytes_per_s: a large copy, bytes read plus bytes written. flops: a large bf16 product.
    """

    bytes_per_s: float
    flops: float

    def floor_us(self, nbytes: float, flops: float = 0.0) -> float:
        """The least time for so many bytes and operations: no version runs much faster."""
        return max(nbytes / self.bytes_per_s, flops / self.flops) * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One run. quick: tiny shapes, whose figures mean nothing. dtype: what models compute in."""

    report: Report
    device: torch.device
    dtype: torch.dtype
    rounds: int
    quick: bool

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def random(self, *shape: int, dtype: torch.dtype | None = None, spread: float = 1.0) -> Tensor:
        """Normal numbers on the device. Never zeros: they are faster than any real input."""
        found = torch.empty(shape, dtype=dtype or self.dtype, device=self.device)
        return found.normal_(std=spread)

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
        """Time candidates in turns and tell them, in microseconds.

        pieces: what one call is divided by. floors: what stands below them, by name.
        """
        self.report.doing(case)
        found = in_turns(candidates, self.device, self.rounds, "us", 1e6 / pieces)
        self.tell(case, found, floors or {}, "us")
        return found

    def tell(
        self, case: str, found: Mapping[str, Samples], floors: Mapping[str, float], unit: str
    ) -> None:
        """Tell samples with their floors below them."""
        below = {f"floor: {name}": Samples((value,), unit) for name, value in floors.items()}
        self.report.measured(case, {**found, **below})

    def check(self, what: str, value: float, unit: str, target: Target = TOLD) -> None:
        """Keep a figure, with its target if it has one."""
        self.report.check(what, value, unit, target)
