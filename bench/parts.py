"""Where the time of a stack goes: its products alone, its recurrence alone, and the rest."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch

import sruserve.kernels.layer as layer_module
from bench.report import Report
from bench.samples import Samples, interleave
from bench.twins import Shape, Twins
from sruserve.kernels import Cell, CellLayer, RaggedBatch, padded_rows, scan
from sruserve.model.network import Network


def products_alone(twins: Twins, network: Network) -> Callable[[], None]:
    """The matrix products of the network, on the pieces that it would cut the batch into."""
    x = twins.packed.to(network.dtype)
    rows = network._piece_rows
    pieces = [x[start : start + rows] for start in range(0, len(x), rows)]
    padded = [torch.cat((p, p.new_zeros(padded_rows(len(p)) - len(p), p.shape[1]))) for p in pieces]
    products = [layer.product for layer in network.layers if isinstance(layer, CellLayer)]

    @torch.inference_mode()
    def run() -> None:
        for piece in padded:
            for product in products:
                product(piece)

    return run


def split(network: Network, run: Callable[[], object], calls: int) -> dict[str, Samples]:
    """The milliseconds of a call of `run` that products, recurrence and the rest take."""
    found: dict[str, list[float]] = {"products": [], "recurrence": [], "rest": []}
    with _timed(network) as spent:
        run()
        for _ in range(calls):
            spent.update(dict.fromkeys(spent, 0.0))
            begin = perf_counter()
            run()
            whole = perf_counter() - begin
            for name, seconds in spent.items():
                found[name].append(seconds * 1e3)
            found["rest"].append((whole - sum(spent.values())) * 1e3)
    return {name: Samples(tuple(values), "ms") for name, values in found.items()}


@contextmanager
def _timed(network: Network) -> Iterator[dict[str, float]]:
    """Within it, the seconds spent in the network's products and in the recurrence add up."""
    spent = {"products": 0.0, "recurrence": 0.0}

    def timed(name: str, call: Callable[..., Any]) -> Any:
        def run(*given: Any, **named: Any) -> Any:
            begin = perf_counter()
            result = call(*given, **named)
            spent[name] += perf_counter() - begin
            return result

        return run

    layers = [
        replace(each, product=timed("products", each.product))
        for each in network.layers
        if isinstance(each, CellLayer)
    ]
    with (
        patch.object(layer_module, "scan", timed("recurrence", scan)),
        patch.object(network, "layers", layers),
    ):
        yield spent


def scan_alone(report: Report, shape: Shape, dtype: torch.dtype, rounds: int) -> None:
    """The recurrence of one layer beside a copy of as many bytes, in ns per (step x channel).

    Both go over the same memory in every call, as large as a piece in a network: what fits into
    the cache there is in the cache here.
    """
    rows, width = shape.steps * shape.batch, shape.width
    u = torch.randn(rows, 3 * width).to(dtype)
    x = torch.randn(rows, width).to(dtype)
    weight_c, bias, cell = torch.randn(2, width), torch.randn(2, width), Cell()
    states = torch.zeros(shape.batch, width)
    sequences = torch.arange(shape.batch)
    batch = RaggedBatch(torch.arange(shape.batch + 1) * shape.steps, states, sequences, sequences)
    # u and x are read and h is written: 5 numbers. A copy moves each of its bytes twice.
    source = torch.randn(rows * width * 5 // 2).to(dtype)
    copied = torch.empty_like(source)
    found = interleave(
        {
            "recurrence": lambda: scan(u, x, weight_c, bias, batch, 0, cell),
            "copy of as many bytes": lambda: copied.copy_(source),
        },
        rounds,
        "ns",
        1e9 / (rows * width),
    )
    case = f"recurrence alone, {rows} rows of {width}, {str(dtype).removeprefix('torch.')}"
    report.measured(case, found)
    ratio = found["recurrence"].over(found["copy of as many bytes"]).median
    report.check(f"{case}: recurrence / copy of as many bytes", ratio, "x")
