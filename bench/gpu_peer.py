"""The reference's own CUDA kernel beside ours, where `sru` 2.6.0 is installed and builds."""

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.gpu_checks import name
from bench.gpu_context import Bench, Ceilings
from bench.gpu_scan import ScanInput, ScanShape, time_scan
from bench.targets import Target

_SHAPES = (ScanShape(512, 32, 1024), ScanShape(512, 32, 512))
_FASTER = Target(least=3)
_TOLERANCE = 1e-4


def peer_timings(bench: Bench, ceilings: Ceilings) -> None:
    """Both kernels on the same numbers, after a check that they agree; or why there is no peer."""
    if not bench.on_gpu:
        return
    try:
        recurrence = _recurrence()
        largest = _disagreement(bench, recurrence)
    except Exception as error:
        lines = str(error).strip().splitlines()
        why = f"{type(error).__name__}: {lines[0] if lines else ''}"
        print(f"the CUDA kernel of sru 2.6.0 is not built: {why}\n", flush=True)
        return
    if not largest <= _TOLERANCE:
        print(f"sru's CUDA kernel and ours differ by {largest:.3g}: not compared\n", flush=True)
        return
    for shape in _SHAPES[:1] if bench.quick else _SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            given = _Given(bench, shape, dtype)
            case = f"sru 2.6.0's CUDA kernel, {shape}, {name(dtype)}"
            theirs = bench.time(case, {"sru, with its casts": given.call(recurrence)})
            ours = time_scan(bench, ceilings, shape, dtype).median
            ratio = theirs["sru, with its casts"].median / ours
            bench.check(f"{case} / ours", ratio, "x", _FASTER)


class _Given:
    """Inputs as `sru` has them: time first, the planes of a channel side by side."""

    def __init__(self, bench: Bench, shape: ScanShape, dtype: torch.dtype) -> None:
        self.ours = ScanInput(bench, shape, dtype)
        self.shape = shape
        u = self.ours.u.view(shape.batch, shape.steps, 3, shape.width)
        self._u = u.permute(1, 0, 3, 2).reshape(shape.steps, shape.batch, -1).contiguous()
        x = self.ours.x.view(shape.batch, shape.steps, shape.width)
        self._x = x.transpose(0, 1).contiguous()
        self._c = self.ours.batch.states.clone()

    def call(self, recurrence: Any) -> Callable[[], tuple[Tensor, Tensor]]:
        """What the package does with them on a GPU: everything is cast to float32."""
        scale = torch.full((1,), 1.25, device=self._u.device)
        weight_c, bias = self.ours.weight_c.flatten(), self.ours.bias.flatten()

        @torch.inference_mode()
        def run() -> tuple[Tensor, Tensor]:
            u, x, c = self._u.float(), self._x.float(), self._c.float()
            width = self.shape.width
            h, end = recurrence(u, x, weight_c, bias, c, 0, width, False, True, scale, None, None)
            return h, end

        return run


def _recurrence() -> Any:
    """`sru`'s operator. Its kernels are compiled when it is imported; a failure is a warning."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        from sru.ops import elementwise_recurrence_inference
    failed = [str(each.message) for each in told if "CUDA kernels" in str(each.message)]
    if failed:
        raise RuntimeError(" ".join(failed[0].split())[:300])
    return elementwise_recurrence_inference


def _disagreement(bench: Bench, recurrence: Any) -> float:
    shape = ScanShape(17, 3, 64)
    given = _Given(bench, shape, torch.float32)
    theirs, _ = given.call(recurrence)()
    ours = given.ours.run().view(shape.batch, shape.steps, shape.width).transpose(0, 1)
    return float((ours - theirs.view_as(ours)).abs().max())
