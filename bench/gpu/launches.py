"""The number of kernel launches for a character, and the time of an empty kernel."""

from collections.abc import Callable, Mapping
from typing import Any

from bench.gpu.clock import captured
from bench.gpu.context import Bench
from sruserve.kernels.decode import Decoder
from sruserve.kernels.slots import Slots

_EMPTY = 200  # empty kernels in one graph


def count_launches(bench: Bench, decoders: Mapping[str, Decoder]) -> None:
    """Record each mode's kernel launches for a character, and the time of as many empty ones."""
    if not bench.on_gpu:
        return
    counts = {mode: _launches(bench, decoder) for mode, decoder in decoders.items()}
    empty = _empty_kernels(bench)
    samples = bench.time("kernels that do nothing, in a graph", {"one": empty}, pieces=_EMPTY)
    bench.check("graph: a kernel that does nothing", samples["one"].median, "us")
    for mode, count in counts.items():
        bench.check(f"decode, {mode}: Triton launches per character", count, "launches")
        floor = samples["one"].median * count
        bench.check(f"decode, {mode}: as many kernels that do nothing", floor, "us")


def _launches(bench: Bench, decoder: Decoder) -> int:
    """Count the launches of one step."""
    from triton.knobs import runtime

    count = 0

    def launched(_: Any) -> None:
        nonlocal count
        count += 1

    slots = Slots(1, 1, bench.device)
    runtime.launch_enter_hook.add(launched)
    try:
        decoder.step(slots)
    finally:
        runtime.launch_enter_hook.remove(launched)
    return count


def _empty_kernels(bench: Bench) -> Callable[[], object]:
    import triton

    kernel: Any = triton.jit(_nothing)
    pointer = bench.random(16)

    def run() -> None:
        for _ in range(_EMPTY):
            kernel[(1,)](pointer, num_warps=1, enable_fp_fusion=False)

    return captured(run, bench.device)


def _nothing(_pointer):  # type: ignore[no-untyped-def]
    return
