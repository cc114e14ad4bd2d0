"""What a graph takes is bounded: the memory of all runs, and the time of a file's own case."""

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from sruserve.export.onnx.export import export_onnx
from sruserve.export.runtime.model import load_onnx
from sruserve.kernels.devices import CPU
from sruserve.model.errors import CheckpointError
from tests.export.runtime.test_file import changed, set_case
from tests.support import save_random_model

# Runs a graph that makes 10 GB of a number, in an arena of 128 MiB.
RUN = """
import numpy as np, resource, torch
from onnx import helper, numpy_helper, TensorProto
from sruserve.export.runtime import arena
from sruserve.export.runtime.session import GraphSession
arena.memory_bytes = lambda: 256 << 20
numbers = [("one", np.ones(1, np.float32)), ("size", np.array([2_500_000_000]))]
graph = helper.make_graph(
    [helper.make_node("Expand", ["one", "size"], ["all"]),
     helper.make_node("ReduceSum", ["all"], ["logits"], keepdims=0)],
    "g", [], [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [])],
    [numpy_helper.from_array(value, name) for name, value in numbers],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
session = GraphSession(model.SerializeToString(), torch.device("cpu"))
try:
    session.run({}, {})
except RuntimeError as error:
    print(error, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10, sep="|")
"""


def test_a_run_that_takes_more_than_the_arena_fails() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], check=True, capture_output=True, text=True)
    error, _, megabytes = done.stdout.partition("|")
    assert error == (
        "a node Expand takes more memory than all ONNX graphs together may take, which is half of "
        "this machine's memory"
    )
    assert int(megabytes) < 2048


def test_the_case_of_a_file_ends_in_time(tmp_path: Path) -> None:
    native = save_random_model(tmp_path / "native", "generate", vocabulary=list(b"abc \n"))
    (file,) = export_onnx(native, tmp_path / "model.onnx", ["sequence"])
    (case,) = [p.value for p in onnx.load(file).metadata_props if p.key == "sruserve.case"]
    steps = 200_000
    inputs = json.loads(case)["inputs"] | {"ids": [[1] * steps], "lengths": [steps]}
    changed(file.parent, set_case(inputs=inputs, sizes={"batch": 1, "time": 1}), file.name)
    with pytest.raises(CheckpointError, match=r"its case takes more than 0\.001 seconds"):
        load_onnx(file, None, CPU, allow_cpu=False, threads=0, trial_seconds=1e-3)
