"""Statistics of inferences in Triton's shape.

Requests are those over KServe. Steps, and the waits for a first step, are those of the model over
all protocols: they are those of the engine's metrics.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sruserve.server.metrics.step_statistics import DurationStat, step_statistics


@dataclass(slots=True)
class Timing:
    """The durations of one request in seconds. inputs: its number of sequences."""

    inputs: int = 0
    reading: float = 0.0
    writing: float = 0.0


@dataclass(slots=True)
class Statistics:
    """The requests for one version of a model."""

    inferences: int = 0
    last_inference: float = 0.0
    success: DurationStat = field(default_factory=DurationStat)
    fail: DurationStat = field(default_factory=DurationStat)
    reading: DurationStat = field(default_factory=DurationStat)
    writing: DurationStat = field(default_factory=DurationStat)

    @contextmanager
    def request(self) -> Iterator[Timing]:
        """Count a request when the block ends, and as a failure if it raises."""
        begin, timing, outcome = time.perf_counter(), Timing(), self.fail
        try:
            yield timing
            outcome = self.success
            self.inferences += timing.inputs
            self.last_inference = time.time()
            self.reading.add(timing.reading)
            self.writing.add(timing.writing)
        finally:
            outcome.add(time.perf_counter() - begin)

    def describe(self, name: str, version: str) -> dict[str, Any]:
        """One of Triton's `model_stats`."""
        queue, steps = step_statistics(name).read()
        computed = DurationStat(
            sum(duration.count for duration in steps.values()),
            sum(duration.seconds for duration in steps.values()),
        )
        none = _duration(DurationStat())
        return {
            "name": name,
            "version": version,
            "last_inference": int(self.last_inference * 1000),
            "inference_count": self.inferences,
            "execution_count": computed.count,
            "inference_stats": {
                "success": _duration(self.success),
                "fail": _duration(self.fail),
                "queue": _duration(queue),
                "compute_input": _duration(self.reading),
                "compute_infer": _duration(computed),
                "compute_output": _duration(self.writing),
                "cache_hit": none,
                "cache_miss": none,
            },
            "response_stats": {},
            "batch_stats": [
                {
                    "batch_size": size,
                    "compute_input": none,
                    "compute_infer": _duration(duration),
                    "compute_output": none,
                }
                for size, duration in sorted(steps.items())
            ],
            "memory_usage": [],
        }


def _duration(duration: DurationStat) -> dict[str, int]:
    return {"count": duration.count, "ns": int(duration.seconds * 1e9)}
