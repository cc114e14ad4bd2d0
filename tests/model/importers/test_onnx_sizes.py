"""Graphs whose numbers are far more than those in their files."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.model.importers.files import imported, refused
from tests.model.importers.test_onnx_nodes import Array, graph, node

MANY = "reads far more numbers than the file holds"
SHAPE = ("steps", 1, 256)
SQUEEZE = {"one": np.array([1])}
SQUARE = np.zeros((1, 1024, 256), np.float32)  # of 1 MiB


def layers(count: int, weight: str) -> list[Any]:
    """A stack of LSTMs with one weight."""
    nodes, x = [], "x"
    for i in range(count):
        nodes.append(node("LSTM", f"{x} {weight} {weight}", f"h{i}", hidden_size=256))
        nodes.append(node("Squeeze", f"h{i} one", f"y{i}" if i + 1 < count else "y"))
        x = f"y{i}"
    return nodes


def test_weights_of_one_number_are_not_made(tmp_path: Path) -> None:
    spread = node("ConstantOfShape", "shape", "W")
    for kind in (spread, node("Expand", "number shape", "W")):
        lstm = node("LSTM", "x W W", "h", hidden_size=2048)
        constants = {
            "shape": np.array([1, 8192, 2048]),
            "number": np.ones(1, np.float32),
            **SQUEEZE,
        }
        nodes = [kind, lstm, node("Squeeze", "h one", "y")]
        path = graph(tmp_path / "m.onnx", nodes, constants, ("steps", 1, 2048))
        assert MANY in refused(tmp_path, path, "encode")


def test_a_weight_of_a_few_layers_may_be_one(tmp_path: Path) -> None:
    path = graph(tmp_path / "m.onnx", layers(4, "W"), {"W": SQUARE, **SQUEEZE}, SHAPE)
    assert imported(tmp_path, path, "encode").config.rnn.num_layers == 4


def test_a_weight_of_many_layers_is_not_copied_for_each(tmp_path: Path) -> None:
    path = graph(tmp_path / "m.onnx", layers(50, "W"), {"W": SQUARE, **SQUEEZE}, SHAPE)
    assert MANY in refused(tmp_path, path, "encode")


@pytest.mark.parametrize("kind", ["Add", "Cast", "Concat"])
def test_computed_constants_are_bounded_together(tmp_path: Path, kind: str) -> None:
    attributes = {"Cast": {"to": TensorProto.FLOAT}, "Concat": {"axis": 0}}.get(kind, {})
    nodes = [node("ConstantOfShape", "shape", "c0")]
    for i in range(70):
        inputs = f"c{i}" if kind == "Cast" else f"c{i if kind == 'Add' else 0} c0"
        nodes.append(node(kind, inputs, f"c{i + 1}", **attributes))
    nodes.append(node("Concat", " ".join(f"c{i + 1}" for i in range(70)), "all", axis=0))
    nodes += [node("Add", "x all", "z"), *layers(1, "W")]
    nodes[-2].input[0] = "z"
    constants = {"shape": np.array([1 << 18]), "W": SQUARE, **SQUEEZE}
    path = graph(tmp_path / "m.onnx", nodes, constants, SHAPE)
    assert MANY in refused(tmp_path, path, "encode")


def test_one_part_of_a_file_may_not_be_many_constants(tmp_path: Path) -> None:
    constants: dict[str, Array] = {f"c{i}": np.zeros(1, np.float32) for i in range(120)}
    nodes = [node("Concat", " ".join(constants), "all", axis=0), node("Add", "x all", "z")]
    nodes += layers(1, "W")
    nodes[-2].input[0] = "z"
    path = graph(tmp_path / "m.onnx", nodes, {**constants, "W": SQUARE, **SQUEEZE}, SHAPE)
    model = onnx.ModelProto.FromString(path.read_bytes())
    (tmp_path / "data").write_bytes(bytes(1 << 20))
    for tensor in model.graph.initializer:
        if tensor.name in constants:
            tensor.ClearField("raw_data")
            tensor.dims[:] = [1 << 18]
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="data")
    path.write_bytes(model.SerializeToString())
    assert MANY in refused(tmp_path, path, "encode")
