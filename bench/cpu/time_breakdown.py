"""A breakdown of a stack's time: its matrix products, its recurrence, and the rest."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F

import sruserve.kernels.layer as layer_module
from bench.cpu.matched_models import MatchedModels, Shape
from bench.report.report import Report
from bench.report.samples import Samples, interleave
from sruserve.kernels import Cell, CellLayer, RaggedBatch, padded_rows, scan
from sruserve.model.network import Network


def matrix_products_alone(models: MatchedModels, network: Network) -> Callable[[], None]:
    """Return a call of the network's matrix products, on the pieces into which it cuts a batch."""
    x = models.packed.to(network.dtype)
    rows = network.piece_rows
    pieces = [x[start : start + rows] for start in range(0, len(x), rows)]
    padded = [F.pad(p, (0, 0, 0, padded_rows(len(p), p.dtype) - len(p))) for p in pieces]
    products = [layer.linear for layer in network.layers if isinstance(layer, CellLayer)]

    @torch.inference_mode()
    def run() -> None:
        for piece in padded:
            for product in products:
                product(piece)

    return run


def split(network: Network, run: Callable[[], object], calls: int) -> dict[str, Samples]:
    """Measure the milliseconds of `run` in products, in the recurrence and in the rest."""
    milliseconds: dict[str, list[float]] = {"products": [], "recurrence": [], "rest": []}
    with _timed(network) as spent:
        run()
        for _ in range(calls):
            spent.update(dict.fromkeys(spent, 0.0))
            begin = perf_counter()
            run()
            total = perf_counter() - begin
            for name, seconds in spent.items():
                milliseconds[name].append(seconds * 1e3)
            milliseconds["rest"].append((total - sum(spent.values())) * 1e3)
    return {name: Samples(tuple(values), "ms") for name, values in milliseconds.items()}


@contextmanager
def _timed(network: Network) -> Iterator[dict[str, float]]:
    """Yield a dict that sums the seconds in the network's products and in its recurrence.

    Meanwhile the layers run one after another, and not in one call.
    """
    spent = {"products": 0.0, "recurrence": 0.0}

    def timed(name: str, call: Callable[..., Any]) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            begin = perf_counter()
            result = call(*args, **kwargs)
            spent[name] += perf_counter() - begin
            return result

        return run

    layers = [
        replace(each, linear=timed("products", each.linear))
        for each in network.layers
        if isinstance(each, CellLayer)
    ]
    with (
        patch.object(layer_module, "scan", timed("recurrence", scan)),
        patch.object(network, "layers", layers),
        patch.object(network, "_compiled", None),
    ):
        yield spent


def scan_alone(report: Report, shape: Shape, dtype: torch.dtype, rounds: int) -> None:
    """Compare one layer's recurrence with a copy of the same bytes, in ns per (step x channel).

    Every call uses the same memory, as large as a piece in a network, so that the cache holds the
    same share of it.
    """
    rows, width = shape.steps * shape.batch, shape.width
    u = torch.randn(rows, 3 * width).to(dtype)
    x = torch.randn(rows, width).to(dtype)
    weight_c, bias, cell = torch.randn(2, width), torch.randn(2, width), Cell()
    states = torch.zeros(shape.batch, width)
    sequences = torch.arange(shape.batch)
    batch = RaggedBatch(torch.arange(shape.batch + 1) * shape.steps, states, sequences, sequences)
    # The recurrence reads u and x and writes h: 5 numbers. A copy moves each of its bytes twice.
    source = torch.randn(rows * width * 5 // 2).to(dtype)
    copied = torch.empty_like(source)
    samples = interleave(
        {
            "recurrence": lambda: scan(u, x, weight_c, bias, batch, 0, cell),
            "copy of as many bytes": lambda: copied.copy_(source),
        },
        rounds,
        "ns",
        1e9 / (rows * width),
    )
    case = f"recurrence alone, {rows} rows of {width}, {str(dtype).removeprefix('torch.')}"
    report.add_case(case, samples)
    ratio = samples["recurrence"].over(samples["copy of as many bytes"]).median
    report.check(f"{case}: recurrence / copy of as many bytes", ratio, "x")
