"""Layers over long inputs: the recurrence's share of the time, and a stack against an LSTM."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bench.gpu.checks import name
from bench.gpu.clock import captured, sets_beyond_cache
from bench.gpu.context import Bench, Ceilings
from bench.gpu.scan import ScanShape
from bench.report.targets import NO_TARGET, Target
from sruserve.kernels import Cell, CellLayer, RaggedBatch, make_linear
from sruserve.kernels.chunks import chunk_rows, plan, run_layers
from sruserve.kernels.devices import copy_to_device
from sruserve.kernels.flat_weights import flatten_weights
from sruserve.kernels.graphs import recorder_for
from sruserve.kernels.input_graphs import USES_BEFORE_CAPTURE, InputGraphs, row_bucket
from sruserve.kernels.side_stream import side_stream_for

_CHUNKS = (2048, 4096, 8192)  # rows; a network uses `chunk_rows`
_TARGETS = {512: Target(maximum=1.35), 2048: Target(maximum=1.15)}
_LSTM = Target(minimum=10)


def layer_timings(bench: Bench, ceilings: Ceilings) -> None:
    """Measure complete layers."""
    for width in (16,) if bench.quick else (512, 1024, 2048):
        shape = ScanShape(3, 2, width) if bench.quick else ScanShape(512, 32, width)
        for layers in (1,) if bench.quick else (1, 4):
            _compare_with_products(bench, ceilings, shape, layers)
    _compare_with_lstm(bench, ceilings)
    for shape in (
        (ScanShape(3, 2, 16),)
        if bench.quick
        else (ScanShape(128, 2, 1024), ScanShape(500, 6, 1024))
    ):
        stack = Stack(bench, shape, 1 if bench.quick else 4)
        table = stack.input(bench)
        calls = {
            "as launched": stack.from_tokens(table, in_bucket=False),
            "in a bucket": stack.from_tokens(table, in_bucket=True),
        }
        bench.time(f"whole inputs, {shape}, {name(bench.dtype)}", calls)


class Stack:
    """Layers of one width with random weights, and their batch, whose states advance in place."""

    def __init__(self, bench: Bench, shape: ScanShape, layers: int) -> None:
        self.shape, self.on = shape, bench.device
        weights = [self._weight(bench) for _ in range(layers)]
        gates = [
            [bench.random(2, shape.width, dtype=torch.float32, spread=0.5) for _ in range(2)]
            for _ in range(layers)
        ]
        self.states = bench.random(shape.batch, layers * shape.width, dtype=torch.float32)
        self.default, self.fast = (
            [
                CellLayer(
                    cell=Cell(),
                    highway_is_input=True,
                    linear=make_linear(weight, None, bench.dtype, bench.device, fast),
                    weight_c=weight_c,
                    bias=bias,
                    column=number * shape.width,
                    fast=fast,
                )
                for number, (weight, (weight_c, bias)) in enumerate(
                    zip(weights, gates, strict=True)
                )
            ]
            for fast in (False, True)
        )
        self.weight_bytes = sum(weight.nbytes for weight in weights)

    def _weight(self, bench: Bench) -> Tensor:
        width = self.shape.width
        return bench.random(3 * width, width, spread=width**-0.5)

    def input(self, bench: Bench) -> Tensor:
        return bench.random(self.shape.rows, self.shape.width)

    def run(self, layers: Sequence[CellLayer], x: Tensor, rows: int) -> Callable[[], list[Tensor]]:
        """Return a call of the stack over chunks of about `rows` rows; 0 is one chunk."""
        each = torch.arange(self.shape.batch)
        offsets = torch.arange(self.shape.batch + 1) * self.shape.steps
        planned = plan(RaggedBatch(offsets, self.states, each, each), rows or 1, one_chunk=not rows)
        moved = x if planned.order is None else x[planned.order.to(self.on)]
        parts = [moved[first:end] for first, end, _ in planned.chunks]
        batches = [batch for *_, batch in planned.chunks]
        stream = side_stream_for(self.on)
        return lambda: run_layers(layers, parts, batches, stream)

    def from_tokens(self, table: Tensor, in_bucket: bool) -> Callable[[], object]:
        """Return a call of the stack over tokens on the host, as launched or in a bucket."""

        def through(tokens: Tensor, batch: RaggedBatch) -> Tensor:
            x = table.index_select(0, tokens)
            for layer in self.default:
                x = layer(x, batch)
            return x

        tokens, each = torch.arange(self.shape.rows), torch.arange(self.shape.batch)
        offsets = torch.arange(self.shape.batch + 1) * self.shape.steps
        batch = RaggedBatch(offsets, self.states, each, each)
        if not in_bucket:

            def launch() -> Tensor:
                ((*_, moved),) = plan(batch, self.shape.rows, one_chunk=True).chunks
                return through(copy_to_device(tokens, self.on), moved)

            return launch
        graphs = InputGraphs(through, self.on, row_bucket(len(tokens)), recorder_for(self.on))
        for _ in range(USES_BEFORE_CAPTURE):
            graphs.run(tokens, batch)
        return lambda: graphs.run(tokens, batch)

    def floors_us(self, ceilings: Ceilings, itemsize: int) -> tuple[float, float]:
        """Return the floors, in µs, of all products and of all recurrences."""
        width, layers = self.shape.width, len(self.default)
        products = 6.0 * self.shape.rows * width * width * layers
        scans = self.shape.moved(itemsize) * layers
        return ceilings.floor_us(0, products), ceilings.floor_us(scans)


def _compare_with_products(bench: Bench, ceilings: Ceilings, shape: ScanShape, layers: int) -> None:
    """Compare sequential and overlapped runs with the products alone, ours and the vendor's."""
    stack = Stack(bench, shape, layers)
    sets = min(3, sets_beyond_cache(shape.moved(bench.dtype.itemsize), bench.device))
    inputs = [stack.input(bench) for _ in range(sets)]

    def in_turn(work: Sequence[Callable[[], object]]) -> Callable[[], object]:
        def run() -> None:
            for each in work:
                each()

        return captured(run, bench.device)

    def products(layers: Sequence[CellLayer]) -> Callable[[], object]:
        def each_layer(x: Tensor) -> Callable[[], object]:
            return lambda: [layer.linear(x) for layer in layers]

        return in_turn([each_layer(x) for x in inputs])

    def stack_runs(layers: Sequence[CellLayer], rows: int) -> Callable[[], object]:
        return in_turn([stack.run(layers, x, rows) for x in inputs])

    served = 4 if bench.quick else chunk_rows(stack.default)
    chunks = sorted({served} if bench.quick else {served, *_CHUNKS})
    candidates = {
        "products alone": products(stack.default),
        "products alone, cuBLAS": products(stack.fast),
        "one after another": stack_runs(stack.default, 0),
        "one after another, fast": stack_runs(stack.fast, 0),
    }
    for rows in chunks:
        candidates[f"chunks of {rows}"] = stack_runs(stack.default, rows)
        candidates[f"chunks of {rows}, fast"] = stack_runs(stack.fast, rows)
    product_us, scan_us = stack.floors_us(ceilings, bench.dtype.itemsize)
    floors = {
        "operations of the products": product_us,
        "bytes of the scans": scan_us,
        "overlapped": max(product_us, scan_us),
        "one after another": product_us + scan_us,
    }
    case = f"{layers} layer{'s' * (layers > 1)}, {shape}, {name(bench.dtype)}"
    samples_by_name = bench.time(case, candidates, pieces=sets, floors=floors)
    target = _TARGETS.get(shape.width, NO_TARGET) if layers == 1 else NO_TARGET
    ours, theirs = samples_by_name["products alone"], samples_by_name["products alone, cuBLAS"]
    for each in [each for each in samples_by_name if not each.startswith("products")]:
        suffix, floor = (" cuBLAS", theirs) if each.endswith("fast") else ("", ours)
        check_target = target if each == f"chunks of {served}" else NO_TARGET
        ratio = samples_by_name[each].over(floor).median
        bench.check(f"{case}: {each} / products alone{suffix}", ratio, "x", check_target)
    bench.check(f"{case}: products, ours / cuBLAS", ours.over(theirs).median, "x")
    bench.check(f"{case}: products, floor / ours", product_us / ours.median, "x")


def _compare_with_lstm(bench: Bench, ceilings: Ceilings) -> None:
    """Compare a stack, launched and as graphs, with cuDNN's LSTM with the same number of layers."""
    shape, layers = ScanShape(512, 32, 1024), 4
    if bench.quick:
        shape, layers = ScanShape(3, 2, 16), 2
    stack = Stack(bench, shape, layers)
    x = stack.input(bench)
    rows = 4 if bench.quick else chunk_rows(stack.default)
    default, fast = stack.run(stack.default, x, rows), stack.run(stack.fast, x, rows)
    candidates: dict[str, Callable[[], object]] = {
        "ours, default": default,
        "ours, fast": fast,
        "ours, default, as a graph": captured(default, bench.device),
        "ours, fast, as a graph": captured(fast, bench.device),
    }
    if bench.on_gpu:
        candidates["cuDNN LSTM"] = _lstm(bench, shape, layers)
    product_us, scan_us = stack.floors_us(ceilings, bench.dtype.itemsize)
    case = f"stack of {layers}, {shape}, {name(bench.dtype)}"
    samples_by_name = bench.time(case, candidates, floors={"overlapped": max(product_us, scan_us)})
    if "cuDNN LSTM" not in samples_by_name:
        return
    for each, samples in samples_by_name.items():
        if each != "cuDNN LSTM":
            ratio = samples_by_name["cuDNN LSTM"].over(samples).median
            bench.check(f"{case}: cuDNN LSTM / {each}", ratio, "x", _LSTM)


def _lstm(bench: Bench, shape: ScanShape, layers: int) -> Callable[[], object]:
    """Return a call of torch's LSTM, which is cuDNN's, in its fastest layout, time first."""
    lstm = torch.nn.LSTM(shape.width, shape.width, num_layers=layers)
    lstm = lstm.to(bench.device, bench.dtype).eval()
    flatten_weights(lstm)
    x = bench.random(shape.steps, shape.batch, shape.width)

    @torch.inference_mode()
    def run() -> object:
        return lstm(x)

    return run
