"""ONNX files that ask for any memory or time are refused, by name, and take little of both."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from sruserve.export.onnx.export import export_onnx
from sruserve.export.onnx.metadata import checksum
from tests.support import save_random_model

HUGE = 2_500_000_000  # floats: 10 GB
ARENA_BYTES, MAX_BYTES = 128 << 20, 256 << 20
Change = Callable[[Any], None]

# Loads every folder that it is given, with a small arena; prints what happened.
LOADER = """
import json, resource, sys, torch
from pathlib import Path
from sruserve.export.runtime import arena, model
from sruserve.export.runtime.load import load_any
from sruserve.kernels import RaggedBatch
arena.memory_bytes = lambda: 2 * {arena}

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def read(folder, steps):
    network = load_any(Path(folder)).network
    states, first = network.layout.allocate(1), torch.zeros(1, dtype=torch.int64)
    batch = RaggedBatch(torch.tensor([0, steps]), states, first, first)
    network.hidden(torch.zeros(steps, dtype=torch.int64), batch, torch.tensor([steps - 1]))

read(sys.argv[1], 12)
for folder in sys.argv[1:]:
    before, error = peak(), ""
    model.TRIAL_SECONDS = 0.5 if Path(folder).name == "long-scan" else 600
    try:
        load_any(Path(folder))
        error = "loaded; "
        read(folder, 12)
    except Exception as raised:
        error += str(raised)
    print(json.dumps([Path(folder).name, error, peak() - before]))
"""


def constant(model: Any, name: str, value: Any) -> str:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def add(model: Any, *nodes: Any, scalar: str) -> None:
    """Add nodes, and a scalar of theirs to the answer, as 0."""
    (last,) = [node for node in model.graph.node if "logits" in node.output]
    zero = helper.make_node("Mul", [scalar, constant(model, "nothing", np.float32(0))], ["naught"])
    own = [*nodes, zero, helper.make_node("Add", [last.input[0], "naught"], ["changed"])]
    last.input[0] = "changed"
    place = list(model.graph.node).index(last)
    kept = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*kept[:place], *own, *kept[place:]])


def total(name: str) -> Any:
    return helper.make_node("ReduceSum", [name], ["total"], keepdims=0)


def expand(model: Any) -> None:
    one, size = constant(model, "one", np.ones(1, np.float32)), constant(model, "size", [HUGE])
    add(model, helper.make_node("Expand", [one, size], ["bomb"]), total("bomb"), scalar="total")


def expand_by_length(model: Any) -> None:
    """Nothing for the case, whose inputs have 5 steps; 10 GB for longer ones."""
    names = [constant(model, f"n{i}", [i]) for i in (0, 6)]
    one, size = constant(model, "one", np.ones(1, np.float32)), constant(model, "size", [HUGE])
    first, own = constant(model, "first", [0]), "own"
    add(
        model,
        helper.make_node("Gather", ["lengths", first], [own]),
        helper.make_node("Sub", [own, names[1]], ["more"]),
        helper.make_node("Max", ["more", names[0]], ["much"]),
        helper.make_node("Mul", ["much", size], ["sizes"]),
        helper.make_node("Expand", [one, "sizes"], ["bomb"]),
        total("bomb"),
        scalar="total",
    )


def concat(model: Any) -> None:
    one = constant(model, "one", np.ones(1, np.float32))
    names = [one, *(f"twice{i}" for i in range(32))]
    doubled = [helper.make_node("Concat", [a, a], [b], axis=0) for a, b in pairwise(names)]
    add(model, *doubled, total(names[-1]), scalar="total")


def outer(model: Any) -> None:
    size = 50_000
    column = constant(model, "column", np.ones((size, 1), np.float32))
    row = constant(model, "row", np.ones((1, size), np.float32))
    add(model, helper.make_node("Mul", [column, row], ["bomb"]), total("bomb"), scalar="total")


def many(model: Any) -> None:
    """Constants that are each small enough, and large together."""
    one, size = constant(model, "one", np.ones(1, np.float32)), constant(model, "size", [10**7])
    nodes = [helper.make_node("Expand", [one, size], [f"part{i}"], name=f"n{i}") for i in range(64)]
    joined = helper.make_node("Concat", [f"part{i}" for i in range(64)], ["bomb"], axis=0)
    add(model, *nodes, joined, total("bomb"), scalar="total")


def body_of(model: Any) -> Any:
    scan = next(node for node in model.graph.node if node.op_type == "Scan")
    return next(a.g for a in scan.attribute if a.name == "body")


def in_a_body(operator: str) -> Change:
    """A tensor of 10 GB in each step of a recurrence."""

    def change(model: Any) -> None:
        body, size = body_of(model), constant(model, "size", [HUGE])
        inputs = [size]
        if operator == "Expand":
            inputs = [constant(model, "one", np.ones(1, np.float32)), size]
        nothing = constant(model, "nothing", np.float32(0))
        output = body.output[-1].name
        (last,) = [node for node in body.node if output in node.output]
        last.output[list(last.output).index(output)] = "before"
        body.node.extend(
            [
                helper.make_node(operator, inputs, ["bomb"]),
                helper.make_node("ReduceSum", ["bomb"], ["total"], keepdims=0),
                helper.make_node("Mul", ["total", nothing], ["naught"]),
                helper.make_node("Add", ["before", "naught"], [output]),
            ]
        )

    return change


def long_scan(model: Any) -> None:
    """A recurrence of 4 million steps over 16 MB."""
    one, size = (
        constant(model, "one", np.ones((1, 1), np.float32)),
        constant(model, "s", [4 * 10**6, 1]),
    )
    start = constant(model, "start", np.zeros(1, np.float32))
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["sum", "step"], ["next"])],
        "body",
        [value("sum", 1, [1]), value("step", 1, [1])],
        [value("next", 1, [1])],
    )
    scan = helper.make_node("Scan", [start, "steps"], ["sums"], body=body, num_scan_inputs=1)
    add(model, helper.make_node("Expand", [one, size], ["steps"]), scan, scalar="sums")


def loop(model: Any) -> None:
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["still"])],
        "body",
        [value("i", 7, []), value("on", 9, [])],
        [value("still", 9, [])],
    )
    trips = constant(model, "trips", 1 << 62)
    model.graph.node.append(helper.make_node("Loop", [trips, ""], [], name="spin", body=body))


def nested(model: Any) -> None:
    graph = helper.make_graph([], "leaf", [], [])
    for level in range(20):  # a protocol buffer holds about 30
        node = helper.make_node("If", ["c"], ["x"], name=f"{level}", then_branch=graph)
        graph = helper.make_graph([node], "g", [], [])
    model.graph.node.extend(graph.node)


def nested_scans(model: Any) -> None:
    body = body_of(model)
    scan = body.node.add(op_type="Scan", name="inner")
    scan.attribute.add(name="body", type=onnx.AttributeProto.GRAPH).g.name = "inner"


def many_nodes(model: Any) -> None:
    model.graph.node.extend(helper.make_node("Identity", ["ids"], [f"i{i}"]) for i in range(5000))


def shared_weight(model: Any) -> None:
    weight = constant(model, "shared", np.ones((64, 64), np.float32))
    model.graph.node.extend(
        helper.make_node("MatMul", ["state", weight], [f"m{i}"]) for i in range(20)
    )


OUT_OF_MEMORY = "takes more memory than all ONNX graphs together may take"
HOSTILE: dict[str, tuple[Change, str]] = {
    "unchanged": (lambda _: None, "loaded; "),
    "expand": (expand, f"a node Expand {OUT_OF_MEMORY}"),
    "expand-by-length": (expand_by_length, f"loaded; .*a node Expand {OUT_OF_MEMORY}"),
    "concat": (concat, f"a node Concat {OUT_OF_MEMORY}"),
    "outer": (outer, f"a node Mul {OUT_OF_MEMORY}"),
    "many": (many, f"a node Concat {OUT_OF_MEMORY}"),
    "expand-in-a-body": (in_a_body("Expand"), f"a node (Scan|Expand) {OUT_OF_MEMORY}"),
    "constant-of-shape": (in_a_body("ConstantOfShape"), "'ConstantOfShape', which no export has"),
    "long-scan": (long_scan, "its case takes more than 0.5 seconds"),
    "loop": (loop, "'spin' is a 'Loop', which no export has"),
    "nested": (nested, "'19' is a 'If', which no export has"),
    "nested-scans": (nested_scans, "a graph in 'inner' is nested deeper"),
    "nodes": (many_nodes, "has more than 4,608 nodes, which no export has: make it again"),
    "shared": (shared_weight, "20 nodes read 'shared'; of an export, 8 at most"),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, int]]:
    """What loading each file said, and how many bytes of memory it took."""
    parent = tmp_path_factory.mktemp("hostile")
    native = save_random_model(parent / "native", "generate", vocabulary=list(b"abc \n"))
    for name, (change, _) in HOSTILE.items():
        (file,) = export_onnx(native, parent / name / "model.onnx", ["sequence"])
        model = onnx.load(file)
        change(model)
        (own,) = [p for p in model.metadata_props if p.key == "sruserve.checksum"]
        own.value = checksum(model)
        file.write_bytes(model.SerializeToString())
    lines = subprocess.run(
        [sys.executable, "-c", LOADER.format(arena=ARENA_BYTES), *(parent / n for n in HOSTILE)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    return {name: (error, size) for name, error, size in map(json.loads, lines)}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_by_name_within_its_memory(
    results: dict[str, tuple[str, int]], name: str
) -> None:
    error, size = results[name]
    assert re.search(HOSTILE[name][1], error, re.DOTALL), error
    assert size < MAX_BYTES
