"""A file cannot end the server: operators that may raise a signal are refused or guarded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from sruserve.export.onnx.export import export_onnx
from sruserve.export.runtime.hazards import check_hazards
from tests.export.onnx.networks import NAMES
from tests.export.onnx.test_network import STREAMABLE, made
from tests.export.runtime.test_file import changed
from tests.preloaded import run
from tests.support import save_random_model

Change = Callable[[Any], None]
WIDTH = 4

# Loads each file in a process of its own and runs it on 13 steps; prints what happened.
RUN = """
import os, sys, torch
from pathlib import Path
from sruserve.export.runtime.load import load_any
from sruserve.kernels import RaggedBatch

def run(path):
    network = load_any(Path(path)).network
    states, first = network.layout.allocate(1), torch.zeros(1, dtype=torch.int64)
    batch = RaggedBatch(torch.tensor([0, 13]), states, first, first)
    network.hidden(torch.zeros(13, dtype=torch.int64), batch, torch.tensor([12]))

for path in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            run(path)
            print("ran", flush=True)
        except Exception as error:
            print(error, flush=True)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        print("ended by signal", os.WTERMSIG(status), flush=True)
"""


def constants(model: Any, **values: Any) -> None:
    for name, value in values.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))


def add(model: Any, *nodes: Any) -> None:
    """Add nodes, and `found`, the output of the last one, to the answer, as 0."""
    (last,) = [node for node in model.graph.node if "logits" in node.output]
    constants(model, nothing=np.float32(0))
    own = [
        *nodes,
        helper.make_node("Cast", ["found"], ["float"], to=onnx.TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["float"], ["total"], keepdims=0),
        helper.make_node("Mul", ["total", "nothing"], ["naught"]),
        helper.make_node("Add", [last.input[0], "naught"], ["changed"]),
    ]
    last.input[0] = "changed"
    kept = list(model.graph.node)
    place = kept.index(last)
    del model.graph.node[:]
    model.graph.node.extend([*kept[:place], *own, *kept[place:]])


def chosen_by_length(if_13: str, otherwise: str, output: str) -> list[Any]:
    """Nodes that choose between two constants: the file's own case has not 13 steps."""
    return [
        helper.make_node("ReduceMax", ["lengths"], ["longest"], keepdims=0),
        helper.make_node("Equal", ["longest", "thirteen"], ["is_13"]),
        helper.make_node("Where", ["is_13", if_13, otherwise], [output]),
    ]


def divides(dtype: type[np.integer[Any]]) -> Change:
    def change(model: Any) -> None:
        constants(model, thirteen=np.int64(13), least=dtype(np.iinfo(dtype).min))
        constants(model, minus=dtype(-1), one=dtype(1))
        chosen = chosen_by_length("minus", "one", "divisor")
        add(model, *chosen, helper.make_node("Div", ["least", "divisor"], ["found"], name="bad"))

    return change


def divides_in_a_body(model: Any) -> None:
    """The type of the outer value hides an inner one of the same name."""
    scan = next(node for node in model.graph.node if node.op_type == "Scan")
    body = next(a.g for a in scan.attribute if a.name == "body")
    constants(model, least=np.int64(-(2**63)), minus=np.int64(-1))
    body.node.add(op_type="Identity", input=["least"], output=["state"])
    body.node.add(op_type="Div", input=["state", "state"], output=["q"], name="bad")


def divides_after_two_casts(model: Any) -> None:
    """A node with two types, of which the runtime may take the other one."""
    constants(model, least=np.int64(-(2**63)))
    cast = helper.make_node("Cast", ["least"], ["number"], to=onnx.TensorProto.FLOAT)
    cast.attribute.add(name="to", type=onnx.AttributeProto.INT, i=onnx.TensorProto.INT64)
    add(model, cast, helper.make_node("Div", ["number", "number"], ["found"], name="bad"))


def remainder_by_an_odd_constant(model: Any) -> None:
    constants(model, divisor=np.int64(3))
    model.graph.initializer[-1].raw_data = b"odd"
    add(model, helper.make_node("Mod", ["lengths", "divisor"], ["found"], name="bad"))


def remainder(model: Any) -> None:
    constants(model, thirteen=np.int64(13), nil=np.int64(0), one=np.int64(1))
    chosen = chosen_by_length("nil", "one", "divisor")
    add(model, *chosen, helper.make_node("Mod", ["lengths", "divisor"], ["found"], name="bad"))


def gathers_by_less_than_no_axes(model: Any) -> None:
    constants(model, none=np.zeros(0, np.int64))
    gather = helper.make_node("GatherND", ["state", "none"], ["found"], batch_dims=-2, name="bad")
    add(model, gather)


def recurs(operator: str, axis: int) -> Change:
    """A recurrent operator whose input has a size of 0 in an axis if there are 13 steps."""
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[operator]

    def change(model: Any) -> None:
        constants(model, thirteen=np.int64(13), nil=[0], one=[1], axis=[axis])
        constants(
            model,
            x=np.ones((1, 1, 1), np.float32),
            W=np.ones((1, gates * WIDTH, 1), np.float32),
            R=np.ones((1, gates * WIDTH, WIDTH), np.float32),
        )
        add(
            model,
            *chosen_by_length("nil", "one", "size"),
            helper.make_node("Slice", ["x", "nil", "size", "axis"], ["cut"]),
            helper.make_node(operator, ["cut", "W", "R"], ["found"], hidden_size=WIDTH),
        )

    return change


INTEGERS = "node 'bad' divides integers, which no export does"
REMAINDER = "node 'bad' takes a remainder by something else than a positive constant"
HAZARDS: dict[str, tuple[Change, str]] = {
    "unchanged": (lambda _: None, "ran"),
    "int64": (divides(np.int64), INTEGERS),
    "int32": (divides(np.int32), INTEGERS),
    "in-a-body": (divides_in_a_body, INTEGERS),
    "two-casts": (divides_after_two_casts, INTEGERS),
    "remainder": (remainder, REMAINDER),
    "odd-remainder": (remainder_by_an_odd_constant, REMAINDER),
    "gather": (gathers_by_less_than_no_axes, "has a negative number of batch axes"),
    **{
        f"{operator}-without-{what}": (recurs(operator, axis), "running Reshape node")
        for axis, (operator, what) in enumerate(
            {"GRU": "steps", "LSTM": "sequences", "RNN": "features"}.items()
        )
    },
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What loading and running each file said."""
    parent = tmp_path_factory.mktemp("hazards")
    native = save_random_model(parent / "native", "generate", vocabulary=list(b"abc \n"))
    (export,) = export_onnx(native, parent / "model.onnx", ["sequence"])
    files = []
    for name, (change, _) in HAZARDS.items():
        files.append(parent / name / "model.onnx")
        files[-1].parent.mkdir()
        files[-1].write_bytes(export.read_bytes())
        changed(files[-1].parent, change)
    done = run("-c", RUN, *map(str, files))
    assert done.returncode == 0, done.stderr
    return dict(zip(HAZARDS, done.stdout.splitlines(), strict=True))


@pytest.mark.parametrize("name", HAZARDS)
def test_a_file_that_may_raise_a_signal_is_refused_or_fails_alone(
    results: dict[str, str], name: str
) -> None:
    assert HAZARDS[name][1] in results[name]


@pytest.mark.parametrize("name", NAMES)
def test_no_export_has_such_operators(name: str) -> None:
    maker, _ = made(name)
    graphs = [maker.sequence({})] + ([maker.step({})] if name in STREAMABLE else [])
    for graph in graphs:
        check_hazards(ir.to_proto(graph).graph, Path(name))
