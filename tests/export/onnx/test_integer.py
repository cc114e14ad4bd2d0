"""Graphs with int8 weights compute what the compiled kernels compute with them."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor

from sruserve.export.errors import ExportError
from sruserve.export.onnx.check import TOLERANCE, GraphCheck
from sruserve.export.onnx.export import export_onnx
from sruserve.export.onnx.graph import FLOAT, Graph
from sruserve.export.onnx.network import GraphMaker
from sruserve.export.onnx.signature import Signature
from sruserve.export.plain import PlainLinear
from sruserve.export.quantize.quantize import quantize
from sruserve.export.runtime.load import load_any
from sruserve.export.runtime.session import GraphSession
from sruserve.export.runtime.weights import make_signed, transpose_tables
from sruserve.kernels import RaggedBatch
from sruserve.kernels.devices import CPU
from sruserve.kernels.quantized_weight import dequantize_rows, quantize_rows
from sruserve.model.config import ModelConfig
from sruserve.model.network import Network
from sruserve.model.quantized import output_axes, restored_tensors, stored_tensors
from tests.export.onnx.networks import config_of
from tests.support import random_tensors

DEMO = Path(__file__).parent.parent.parent.parent / "sruserve" / "demo"
NAMES = (
    *("sru", "srupp", "lrn", "qrnn", "lstm", "gru", "gru-reset-before", "rnn-tanh", "atr-tanh"),
    *("sru-both-ways", "gru-both-ways", "sru-projected-input", "classify-attention", "tag-crf"),
    *("generate-tied", "generate-mixture", "generate-adaptive", "pair-mean", "cnn"),
)


def int8(name: str) -> tuple[ModelConfig, dict[str, Tensor]]:
    """A network whose weights were rounded to int8 and restored."""
    config = config_of(name).model_copy(update={"weights": "int8"})
    stored = stored_tensors(config, random_tensors(config))
    return config, restored_tensors(config, stored, name)


def agrees(maker: GraphMaker, network: Network, kind: str, seed: int) -> bool:
    model = maker.step({}) if kind == "step" else maker.sequence({})
    try:
        GraphCheck(model, network, seed, TOLERANCE).run(kind)
    except ExportError:
        return False
    return True


@pytest.mark.parametrize("name", NAMES)
def test_an_int8_graph_rounds_and_sums_as_the_compiled_kernels_do(name: str) -> None:
    config, tensors = int8(name)
    maker, network = GraphMaker(config, tensors), Network(config, tensors, torch.float32)
    # One number in 100,000 lies so close to the edge of two bytes that its last bit decides.
    assert any(agrees(maker, network, "sequence", seed) for seed in range(3))
    if network.supports_streaming:
        assert any(agrees(maker, network, "step", seed) for seed in range(3))


@pytest.mark.parametrize("name", ["sru", "lstm", "srupp", "generate-tied", "generate-adaptive"])
def test_every_weight_that_is_int8_in_a_folder_takes_bytes_in_its_graph(name: str) -> None:
    config, tensors = int8(name)
    graph = ir.to_proto(GraphMaker(config, tensors).sequence({})).graph
    held = sum(np.prod(t.dims) for t in graph.initializer if t.data_type == onnx.TensorProto.UINT8)
    own = sum(tensors[weight].numel() for weight in output_axes(config))
    assert own < held <= own * 1.05  # with the byte of zero, and a row of an adaptive table


def test_an_int8_file_takes_about_a_quarter_of_the_bytes(tmp_path: Path) -> None:
    quantize(DEMO / "question-type", tmp_path / "small", "int8")
    sizes = {}
    for name, folder in (("float32", DEMO / "question-type"), ("int8", tmp_path / "small")):
        (file,) = export_onnx(folder, tmp_path / f"{name}.onnx", ["sequence"])
        weights = onnx.load(file).graph.initializer
        sizes[name] = sum(numpy_helper.to_array(weight).nbytes for weight in weights)
        rest = file.stat().st_size - sizes[name]
        assert rest < 130_000  # the vocabulary, twice as text, and the nodes
    stored = (tmp_path / "small" / "model.safetensors").stat().st_size
    assert sizes["float32"] == pytest.approx(2_592_696, rel=0.01)
    assert sizes["int8"] == pytest.approx(stored, rel=0.01)
    assert sizes["int8"] < 0.27 * sizes["float32"]


@pytest.mark.parametrize("name", ["sru", "generate-tied", "generate-mixture", "pair-mean"])
def test_signs_that_a_processor_needs_change_no_bit(name: str) -> None:
    content = ir.to_proto(GraphMaker(*int8(name)).sequence({}))
    signed = onnx.ModelProto()
    signed.CopyFrom(content)
    transpose_tables(signed.graph)
    make_signed(signed.graph)
    kinds = {weight.data_type for weight in signed.graph.initializer}
    assert onnx.TensorProto.INT8 in kinds
    results = []
    for model in (content, signed):
        session = GraphSession(model.SerializeToString(), CPU)
        inputs = {
            value.name: torch.ones(
                [3 if dim.HasField("dim_param") else dim.dim_value for dim in shape],
                dtype=Signature.dtype(value.name),
            )
            for value in model.graph.input
            for shape in [value.type.tensor_type.shape.dim]
        }
        results.append(session.run(inputs, {"batch": 3, "time": 3}))
    assert all(torch.equal(value, results[1][key]) for key, value in results[0].items())


def test_no_row_of_an_int8_graph_depends_on_its_batch_or_split(tmp_path: Path) -> None:
    quantize(DEMO / "shakespeare", tmp_path / "small", "int8")
    export_onnx(tmp_path / "small", tmp_path / "onnx")
    network = load_any(tmp_path / "onnx").network
    ids, steps, rows = torch.randint(65, (4, 33)), 33, torch.arange(4)
    together = network.layout.allocate(4)
    batch = RaggedBatch(torch.arange(5) * steps, together, torch.full_like(rows, -1), rows)
    whole = network.hidden(ids.flatten(), batch).view(4, steps, -1)
    alone, first = network.layout.allocate(1), torch.zeros(1, dtype=torch.int64)
    parts = []
    for begin, end in ((0, 1), (1, 20), (20, 21), (21, steps)):
        batch = RaggedBatch(torch.tensor([0, end - begin]), alone, first, first)
        parts.append(network.hidden(ids[2, begin:end], batch))
    assert torch.equal(torch.cat(parts), whole[2])
    assert torch.equal(alone[0], together[2])


def product(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """x times a weight in a graph of its own."""
    graph = Graph("product", integer=True)
    rows = graph.input("features", FLOAT, ("batch", x.shape[1]))
    y = graph.linear(rows, PlainLinear(weight, bias), "linear")
    graph.output("hidden", y, ("batch", len(weight)))
    content = ir.to_proto(graph.model({})).SerializeToString()
    return GraphSession(content, CPU).run({"features": x}, {"batch": len(x)})["hidden"]


def test_a_row_that_is_not_finite_gives_nan_and_no_other_row_does() -> None:
    weight, x = dequantize_rows(*quantize_rows(torch.randn(9, 37))), torch.randn(7, 37)
    x[1, 36], x[2, 0], x[3, 5], x[4, 4:6] = torch.nan, torch.inf, -torch.inf, torch.nan
    x[5] = 0
    y = product(weight, torch.arange(9.0), x)
    assert y.isnan().all(1).tolist() == [False, True, True, True, True, False, False]
    assert torch.equal(y[5], torch.arange(9.0))


def test_a_weight_that_was_never_int8_is_multiplied_in_floats() -> None:
    weight, x = torch.randn(9, 37), torch.randn(5, 37)
    torch.testing.assert_close(product(weight, None, x), x @ weight.T, rtol=1e-5, atol=1e-5)
