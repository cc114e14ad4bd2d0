"""ONNX graphs in ONNX Runtime against the compiled kernels, and against a Scan of whole cells.

    python -m bench.onnx            # a minute; needs an idle machine
    python -m bench.onnx --quick    # only shows that it runs; its figures mean nothing

Candidates take turns and have the same number of threads. Each graph is compared with our network
before it is measured.
"""

import argparse
import os
import sys
from collections.abc import Callable

import onnx_ir as ir
import torch
from torch import Tensor

from bench.onnx.products import products_graph
from bench.onnx.whole_cell import whole_cell_graph
from bench.report.arguments import command_line
from bench.report.report import Report
from bench.report.samples import interleave
from bench.report.targets import Target
from sruserve.export.onnx.check import TOLERANCE, GraphCheck
from sruserve.export.onnx.network import GraphMaker
from sruserve.export.runtime.session import GraphSession
from sruserve.export.runtime.weights import make_signed, multiplies_signed
from sruserve.kernels import RaggedBatch
from sruserve.model.cells.sru import SRUConfig
from sruserve.model.config import ModelConfig, architecture
from sruserve.model.network import Network, network_shapes
from sruserve.model.quantized import restored_tensors, stored_tensors

_SEED = 1


def main() -> int:
    args = _arguments()
    torch.set_num_threads(args.threads)
    report = Report("onnx", ("onnxruntime", "onnxscript"), args.quick)
    width, layers, rounds = (64, 2, 2) if args.quick else (512, 4, 15)
    _sequences(report, 16 if args.quick else 128, 32, width, layers, rounds)
    width, layers = (64, 2) if args.quick else (1024, 8)
    for streams, slowest in ((1, 1.3), (32, 1.8)):
        _step(report, streams, width, layers, rounds, Target(maximum=slowest))
        _integer_step(report, streams, width, layers, rounds)
    report.finish(args.results)
    return 0


def _sequences(
    report: Report, steps: int, batch: int, width: int, layers: int, rounds: int
) -> None:
    """Whole inputs: our graph, the rival, the compiled kernels, and the products of both graphs."""
    case = f"sequence graph ({steps}, {batch}, {width}, {layers})"
    report.progress(case)
    config, tensors, network = _model(width, layers)
    graph = GraphMaker(config, tensors).sequence({})
    GraphCheck(graph, network).sequence()
    x = torch.randn(batch, steps, width)
    ours, rival = _session(graph), _session(whole_cell_graph(config, tensors))
    products, rows = _session(products_graph(config, tensors)), x.flatten(0, 1)
    sizes = {"batch": batch, "time": steps}
    inputs = {
        "features": x,
        "lengths": torch.full((batch,), steps),
        "state": torch.zeros(batch, network.layout.width),
    }
    rivals_inputs = {
        "features": x.transpose(0, 1).contiguous(),
        "state": torch.zeros(layers, batch, width),
    }
    hidden = ours.run(inputs, sizes)["hidden"]
    difference = (hidden - rival.run(rivals_inputs, sizes)["hidden"].transpose(0, 1)).abs().max()
    assert difference < TOLERANCE, f"the graphs differ by {difference}"
    samples = interleave(
        {
            "Scan of whole cells": lambda: rival.run(rivals_inputs, sizes),
            "our graph": lambda: ours.run(inputs, sizes),
            "products alone": lambda: products.run({"features": rows}, {"rows": len(rows)}),
            "compiled kernels": _native(network, rows, batch),
        },
        rounds,
    )
    report.add_case(case, samples)
    rival_times = samples["Scan of whole cells"]
    ratio = rival_times.over(samples["our graph"]).median
    report.check(f"{case}: Scan of whole cells / our graph", ratio, "x", Target(minimum=1.2))
    ratio = rival_times.over(samples["products alone"]).median  # no graph could be faster
    report.check(f"{case}: Scan of whole cells / products alone", ratio, "x")
    ratio = samples["our graph"].over(samples["compiled kernels"]).median
    report.check(f"{case}: our graph / compiled kernels", ratio, "x")


def _step(
    report: Report, streams: int, width: int, layers: int, rounds: int, slowest: Target
) -> None:
    """One step of some streams: our graph and the compiled kernels."""
    case = f"step graph ({streams}, {width}, {layers})"
    report.progress(case)
    config, tensors, network = _model(width, layers)
    graph = GraphMaker(config, tensors).step({})
    GraphCheck(graph, network).step()
    x = torch.randn(streams, width)
    session = _session(graph)
    inputs = {"features": x, "state": torch.zeros(streams, network.layout.width)}
    samples = interleave(
        {
            "compiled kernels": _native(network, x, streams),
            "our graph": lambda: session.run(inputs, {"batch": streams}),
        },
        rounds,
    )
    report.add_case(case, samples)
    ratio = samples["our graph"].over(samples["compiled kernels"]).median
    report.check(f"{case}: our graph / compiled kernels", ratio, "x", slowest)


def _integer_step(report: Report, streams: int, width: int, layers: int, rounds: int) -> None:
    """One step of some streams with int8 weights, beside our graph in float32."""
    case = f"int8 step graph ({streams}, {width}, {layers})"
    report.progress(case)
    floats, tensors, _ = _model(width, layers)
    config = floats.model_copy(update={"weights": "int8"})
    restored = restored_tensors(config, stored_tensors(config, tensors), case)
    network = Network(config, restored, torch.float32)
    network.warm_up()
    graph = GraphMaker(config, restored).step({})
    GraphCheck(graph, network).step()
    session, plain = _session(graph), _session(GraphMaker(floats, tensors).step({}))
    x = torch.randn(streams, width)
    inputs = {"features": x, "state": torch.zeros(streams, network.layout.width)}
    samples = interleave(
        {
            "compiled int8 kernels": _native(network, x, streams),
            "our float32 graph": lambda: plain.run(inputs, {"batch": streams}),
            "our int8 graph": lambda: session.run(inputs, {"batch": streams}),
        },
        rounds,
    )
    report.add_case(case, samples)
    ratio = samples["our int8 graph"].over(samples["compiled int8 kernels"]).median
    report.check(f"{case}: our int8 graph / compiled int8 kernels", ratio, "x")
    ratio = samples["our float32 graph"].over(samples["our int8 graph"]).median
    report.check(f"{case}: our float32 graph / our int8 graph", ratio, "x")


def _model(width: int, layers: int) -> tuple[ModelConfig, dict[str, Tensor], Network]:
    torch.manual_seed(_SEED)
    rnn = SRUConfig(input_size=width, hidden_size=width, num_layers=layers)
    config = ModelConfig(architectures=(architecture(rnn, "encode"),), task="encode", rnn=rnn)
    tensors = {name: torch.randn(shape) * 0.04 for name, shape in network_shapes(config).items()}
    network = Network(config, tensors, torch.float32)
    network.warm_up()
    return config, tensors, network


def _session(model: ir.Model) -> GraphSession:
    content = ir.to_proto(model)
    if multiplies_signed():  # as a server does
        make_signed(content.graph)
    return GraphSession(content.SerializeToString(), torch.device("cpu"), torch.get_num_threads())


def _native(network: Network, packed: Tensor, sequences: int) -> Callable[[], Tensor]:
    """Return a call of the compiled kernels over sequences that begin from zeros."""
    rows = torch.arange(sequences)
    offsets = torch.arange(sequences + 1) * (len(packed) // sequences)
    states = network.layout.allocate(sequences)
    batch = RaggedBatch(offsets, states, torch.full_like(rows, -1), rows)
    return lambda: network.hidden(packed, batch)


def _arguments() -> argparse.Namespace:
    parser = command_line("bench.onnx", __doc__)
    parser.add_argument("--quick", action="store_true", help="tiny shapes; nothing is stored")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="threads of every candidate"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
