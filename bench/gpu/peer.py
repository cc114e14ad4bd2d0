"""The reference's own CUDA kernel against ours, if `sru` 2.6.0 is installed and compiles."""

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.gpu.checks import name
from bench.gpu.context import Bench, Ceilings
from bench.gpu.scan import ScanInput, ScanShape, time_scan
from bench.report.targets import Target

_SHAPES = (ScanShape(512, 32, 1024), ScanShape(512, 32, 512))
_FASTER = Target(minimum=3)
_TOLERANCE = 1e-4


def peer_timings(bench: Bench, ceilings: Ceilings) -> None:
    """Measure both kernels on the same numbers, after a check that they agree.

    Prints the reason if there is no peer.
    """
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
        print(
            f"sru's CUDA kernel and ours differ by {largest:.3g}; the limit is {_TOLERANCE:g}: not "
            "compared\n",
            flush=True,
        )
        return
    for shape in _SHAPES[:1] if bench.quick else _SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            inputs = _PeerInput(bench, shape, dtype)
            case = f"sru 2.6.0's CUDA kernel, {shape}, {name(dtype)}"
            theirs = bench.time(case, {"sru, with its casts": inputs.call(recurrence)})
            ours = time_scan(bench, ceilings, shape, dtype).median
            ratio = theirs["sru, with its casts"].median / ours
            bench.check(f"{case} / ours", ratio, "x", _FASTER)


class _PeerInput:
    """Inputs in the layout of `sru`: time first, the planes of a channel adjacent."""

    def __init__(self, bench: Bench, shape: ScanShape, dtype: torch.dtype) -> None:
        self.ours = ScanInput(bench, shape, dtype)
        self.shape = shape
        u = self.ours.u.view(shape.batch, shape.steps, 3, shape.width)
        self._u = u.permute(1, 0, 3, 2).reshape(shape.steps, shape.batch, -1).contiguous()
        x = self.ours.x.view(shape.batch, shape.steps, shape.width)
        self._x = x.transpose(0, 1).contiguous()
        self._c = self.ours.batch.states.clone()

    def call(self, recurrence: Any) -> Callable[[], tuple[Tensor, Tensor]]:
        """Return a call as in the package on a GPU, where everything is cast to float32."""
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
    """Import `sru`'s operator, which compiles its kernels; it reports a failure as a warning."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from sru.ops import elementwise_recurrence_inference
    failed = [str(each.message) for each in caught if "CUDA kernels" in str(each.message)]
    if failed:
        raise RuntimeError(" ".join(failed[0].split())[:300])
    return elementwise_recurrence_inference


def _disagreement(bench: Bench, recurrence: Any) -> float:
    shape = ScanShape(17, 3, 64)
    inputs = _PeerInput(bench, shape, torch.float32)
    theirs, _ = inputs.call(recurrence)()
    ours = inputs.ours.run().view(shape.batch, shape.steps, shape.width).transpose(0, 1)
    return float((ours - theirs.view_as(ours)).abs().max())
