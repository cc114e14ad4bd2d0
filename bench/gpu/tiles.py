"""Measure every tile of the scan and of products, so that a table shows the best ones."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from bench.gpu.checks import name
from bench.gpu.clock import captured
from bench.gpu.context import Bench, Ceilings
from bench.gpu.scan import ScanShape, scan_in_turn, scan_inputs
from sruserve.kernels import Cell
from sruserve.kernels.triton import tiles as shipped
from sruserve.kernels.triton.tiles import LinearTile, ScanTile

_WARPS = {16: 1, 32: 1, 64: 1, 128: 2}
SCAN_SWEEP = tuple(
    ScanTile(channels, steps, stages, _WARPS[channels])
    for channels in (32, 64, 128)
    for steps, stages in ((4, 3), (4, 8), (8, 2), (8, 3), (8, 4), (8, 6), (16, 2), (16, 3), (16, 4))
)
PREFILL_SWEEP = (
    LinearTile(128, 128, 64, 3, 8),
    LinearTile(128, 128, 64, 4, 8),
    LinearTile(128, 128, 64, 4, 4),
    LinearTile(128, 256, 64, 3, 8),
    LinearTile(128, 256, 64, 4, 8),
    LinearTile(256, 128, 64, 3, 8),
    LinearTile(64, 256, 64, 4, 4),
)
DECODE_SWEEP = (  # the first one is that whose bits the others should have
    LinearTile(64, 16, 128, 4, 4),
    LinearTile(64, 16, 128, 6, 4),
    LinearTile(64, 16, 256, 3, 4),
    LinearTile(64, 32, 64, 5, 4),
    LinearTile(64, 32, 128, 4, 4),
    LinearTile(64, 64, 64, 5, 4),
    LinearTile(128, 64, 64, 4, 8),
    LinearTile(128, 128, 64, 3, 8),
    LinearTile(64, 8, 128, 6, 4),
    LinearTile(64, 8, 256, 4, 4),
)
STEP_SWEEP = (
    LinearTile(64, 16, 128, 3, 4),
    LinearTile(64, 16, 128, 4, 4),
    LinearTile(64, 16, 64, 6, 4),
    LinearTile(64, 32, 64, 4, 4),
    LinearTile(64, 32, 128, 3, 4),
    LinearTile(64, 64, 64, 3, 4),
    LinearTile(64, 64, 64, 3, 8),
    LinearTile(128, 32, 64, 4, 8),
    LinearTile(128, 64, 64, 3, 8),
    LinearTile(128, 64, 64, 4, 8),
    LinearTile(64, 8, 128, 4, 4),
    LinearTile(64, 8, 256, 3, 4),
)
_LAYERS = 12  # different weights in turn, as in a model: together they exceed the cache
_WIDTH, _PROJECTION = 2048, 512
_SHIPPED = " (shipped)"


def tile_timings(bench: Bench, ceilings: Ceilings) -> None:
    """Run the sweeps; a tile that cannot be compiled is reported and skipped."""
    _scan_sweep(bench, ceilings)
    _prefill_sweep(bench, ceilings)
    _decode_sweep(bench, ceilings)
    _step_sweep(bench, ceilings)


def _scan_sweep(bench: Bench, ceilings: Ceilings) -> None:
    shapes = (ScanShape(512, 32, 1024), ScanShape(512, 2, 1024))
    tiles: Sequence[ScanTile] = SCAN_SWEEP
    if bench.quick:
        shapes, tiles = (ScanShape(3, 2, 40),) * 2, SCAN_SWEEP[:1]
    for shape in shapes:
        inputs, candidates = scan_inputs(bench, shape, bench.dtype), {}
        for tile in tiles:
            try:
                with _scan_tile(tile):
                    candidates[_scan_name(tile)] = scan_in_turn(bench, inputs)
            except Exception as error:
                _left_out(_scan_name(tile), error)
        moved = shape.moved(bench.dtype.itemsize)
        floors = {"bytes moved / copy bandwidth": ceilings.floor_us(moved)}
        case = f"tiles of the scan, {shape}, {name(bench.dtype)}"
        samples = bench.time(case, candidates, pieces=len(inputs), floors=floors)
        best = min(samples, key=lambda each: samples[each].median)
        took = samples[best].median / shape.steps * 1e3
        bench.check(f"{case}: best, {best}: ns/step", took, "ns")


def _scan_tile(tile: ScanTile) -> AbstractContextManager[Any]:
    import sruserve.kernels.triton.scan as triton_scan

    return patch.object(triton_scan, "scan_tile", lambda *_: tile)


def _scan_name(tile: ScanTile) -> str:
    name = f"{tile.channels} channels x {tile.steps} steps, {tile.stages} stages"
    return name + _SHIPPED * (tile in vars(shipped).values())


def _prefill_sweep(bench: Bench, ceilings: Ceilings) -> None:
    """Measure products of long inputs; floor / time is the share of the peak rate."""
    rows, inputs, outputs = (4, 16, 48) if bench.quick else (16_384, 1024, 3072)
    _products(bench, ceilings, PREFILL_SWEEP, rows, inputs, outputs, count=2)


def _decode_sweep(bench: Bench, ceilings: Ceilings) -> None:
    """Measure products of one step, each with its own weight, as in a model."""
    sizes = (
        ((2, 16, 8),) if bench.quick else tuple((s, _WIDTH, _PROJECTION) for s in (1, 256, 1024))
    )
    for rows, inputs, outputs in sizes:
        _products(bench, ceilings, DECODE_SWEEP, rows, inputs, outputs, _LAYERS)


def _products(
    bench: Bench,
    ceilings: Ceilings,
    tiles: Sequence[LinearTile],
    rows: int,
    inputs: int,
    outputs: int,
    count: int,
) -> None:
    from sruserve.kernels.triton.linear import triton_linear

    x = bench.random(rows, inputs)
    weights = [bench.random(outputs, inputs, spread=inputs**-0.5) for _ in range(count)]
    calls = {
        _tile_name(tile): partial(triton_linear, tile=tile)
        for tile in (tiles[:1] if bench.quick else tiles)
    }
    calls["as the server chooses"] = partial(triton_linear)
    calls["cuBLAS"] = torch.nn.functional.linear  # type: ignore[assignment]
    work = {each: partial(_each_weight, call, x, weights) for each, call in calls.items()}
    nbytes = (x.nbytes + rows * outputs * x.itemsize) + weights[0].nbytes
    floor = ceilings.floor_us(nbytes, 2.0 * rows * inputs * outputs)
    _compare(bench, f"tiles of products, {rows} x {inputs} x {outputs}", work, count, floor)


def _step_sweep(bench: Bench, ceilings: Ceilings) -> None:
    """Measure product and gates of one step, each with its own weight and states."""
    from sruserve.kernels.triton.step import triton_step

    width, inputs = (32, 16) if bench.quick else (_WIDTH, _PROJECTION)
    for rows in (2,) if bench.quick else (1, 256, 1024):
        x, residual = bench.random(rows, inputs), bench.random(rows, width)
        weights = [bench.random(3 * width, inputs, spread=inputs**-0.5) for _ in range(_LAYERS)]
        weight_c = bench.random(2, width, dtype=torch.float32)
        bias = bench.random(2, width, dtype=torch.float32)
        states = bench.random(2 * rows, _LAYERS * width, dtype=torch.float32)
        order = torch.randperm(2 * rows, device=bench.device)
        rest = (None, residual, weight_c, bias, states, order[:rows], order[rows:].clone())
        work = {
            _tile_name(tile): partial(_each_step, triton_step, x, weights, rest, tile)
            for tile in (STEP_SWEEP[:1] if bench.quick else STEP_SWEEP)
        }
        nbytes = weights[0].nbytes + rows * (2 * width * 4 + (inputs + 2 * width) * x.itemsize)
        floor = ceilings.floor_us(nbytes, 2.0 * rows * inputs * 3 * width)
        _compare(bench, f"tiles of steps, {rows} x {inputs} x 3 x {width}", work, _LAYERS, floor)


def _each_step(
    step: Callable[..., Tensor],
    x: Tensor,
    weights: Sequence[Tensor],
    rest: tuple[Tensor | None, ...],
    tile: LinearTile,
) -> Tensor:
    width = len(weights[0]) // 3
    return [
        step(x, weight, *rest, number * width, Cell(), tile=tile)
        for number, weight in enumerate(weights)
    ][-1]


def _each_weight(call: Callable[..., Tensor], x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    return [call(x, weight) for weight in weights][-1]


def _compare(
    bench: Bench, case: str, work: Mapping[str, Callable[[], Tensor]], pieces: int, floor: float
) -> None:
    """Time the candidates that compile, and record whether all of ours give the same bits."""
    candidates, results = {}, []
    for each, run in work.items():
        try:
            result = run()
            candidates[each] = captured(run, bench.device)
        except Exception as error:
            _left_out(each, error)
            continue
        if each != "cuBLAS":
            results.append(result)
    samples = bench.time(case, candidates, pieces=pieces, floors={"bytes or operations": floor})
    ours = {each: took.median for each, took in samples.items() if each != "cuBLAS"}
    best = min(ours, key=lambda each: ours[each])
    bench.check(f"{case}: best, {best}", ours[best], "us")
    differing = sum(not torch.equal(result, results[0]) for result in results)
    bench.check(f"{case}: tiles with other bits than {next(iter(ours))}", differing, "tiles")


def _tile_name(tile: LinearTile) -> str:
    name = f"{tile.rows} x {tile.columns} x {tile.depth}, {tile.stages} stages, {tile.warps} warps"
    return name + _SHIPPED * (tile in vars(shipped).values())


def _left_out(tile: str, error: Exception) -> None:
    text = str(error).strip().splitlines()
    print(f"{tile} left out: {type(error).__name__}: {text[-1] if text else ''}", flush=True)
