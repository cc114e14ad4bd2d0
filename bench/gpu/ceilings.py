"""The device's peak rates: bytes of a large copy, operations of a large matrix product."""

from functools import partial

import torch

from bench.gpu.context import Bench, Ceilings

_COPIED = 1 << 32  # bytes; read once and written once, 8.6 GB
_SIDE = 8192


def measure_ceilings(bench: Bench) -> Ceilings:
    """Measure the two rates from which every floor of the run is computed."""
    nbytes, side = (1 << 16, 32) if bench.quick else (_COPIED, _SIDE)
    source = bench.random(nbytes // 2, dtype=torch.bfloat16)
    to = torch.empty_like(source)
    dtype = torch.bfloat16 if bench.on_gpu else torch.float32
    a, b = (bench.random(side, side, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    samples = bench.time(
        "ceilings", {"copy": lambda: to.copy_(source), "product": partial(torch.mm, a, b, out=out)}
    )
    ceilings = Ceilings(
        2 * source.nbytes / samples["copy"].median * 1e6,
        2 * side**3 / samples["product"].median * 1e6,
    )
    copied = f"copy of {source.nbytes / 1e9:.2g} GB on the device: bytes read and written"
    bench.check(copied, ceilings.bytes_per_s / 1e12, "TB/s")
    bench.check(f"{dtype} product of {side}^3", ceilings.flops / 1e12, "TFLOP/s")
    return ceilings
