"""A recurrent operator without steps, sequences or features fails alone, and ends no process."""

import subprocess
import sys

import pytest

RUN = """
import sys, numpy as np, torch
from onnx import helper, numpy_helper, TensorProto
from sruserve.export.runtime.recurrence_guard import guard_recurrences
from sruserve.export.runtime.session import GraphSession
operator, gates, shape = sys.argv[1], int(sys.argv[2]), [int(size) for size in sys.argv[3:]]
weights = {"x": (shape), "W": (1, gates * 4, shape[2]), "R": (1, gates * 4, 4)}
graph = helper.make_graph(
    [helper.make_node(operator, ["x", "W", "R"], ["all"], hidden_size=4),
     helper.make_node("ReduceSum", ["all"], ["logits"], keepdims=0)],
    "g", [], [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [])],
    [numpy_helper.from_array(np.ones(size, np.float32), name) for name, size in weights.items()],
)
guard_recurrences(graph)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
try:
    GraphSession(model.SerializeToString(), torch.device("cpu")).run({}, {})
    print("ran")
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("operator", "gates", "shape", "outcome"),
    [
        ("GRU", 3, (0, 1, 1), "running Reshape node"),
        ("LSTM", 4, (1, 0, 1), "running Reshape node"),
        ("RNN", 1, (1, 1, 0), "running Reshape node"),
        ("GRU", 3, (2, 1, 1), "ran"),
    ],
)
def test_without_numbers_a_recurrent_operator_fails_alone(
    operator: str, gates: int, shape: tuple[int, ...], outcome: str
) -> None:
    command = [sys.executable, "-c", RUN, operator, str(gates), *map(str, shape)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert outcome in done.stdout
