"""A file's graph is that of its config, whatever its checksum says: only weights may differ."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper, numpy_helper

from sruserve.export.onnx.network import GraphKind, GraphMaker
from sruserve.export.runtime.graph_match import check_graph
from sruserve.model.errors import CheckpointError
from tests.export.onnx.networks import NAMES, config_of
from tests.export.onnx.test_network import STREAMABLE, made
from tests.support import random_tensors

Change = Callable[[Any], None]
PATH = Path("model.onnx")


def graph_of(name: str, kind: GraphKind = "sequence") -> Any:
    maker, _ = made(name)
    model = ir.to_proto(maker.graph(kind, {}))
    return onnx.ModelProto.FromString(model.SerializeToString()).graph


def check(graph: Any, name: str, kind: GraphKind = "sequence") -> None:
    check_graph(graph, config_of(name), kind, PATH)


@pytest.mark.parametrize("name", NAMES)
def test_the_graphs_of_all_exports_are_those_of_their_configs(name: str) -> None:
    check(graph_of(name), name)
    if name in STREAMABLE:
        check(graph_of(name, "step"), name, "step")


@pytest.mark.parametrize("scale", [1.0, 1.7])
def test_a_highway_may_have_any_scale(scale: float) -> None:
    config = config_of("sru-updated-reset")
    tensors = random_tensors(config)
    scales = {name: torch.tensor([scale]) for name in tensors if name.endswith("scale_x")}
    assert scales
    model = ir.to_proto(GraphMaker(config, tensors | scales).sequence({}))
    check(model.graph, "sru-updated-reset")


def renamed(graph: Any, outer: dict[str, str]) -> None:
    """Give all values of a graph other names, but those that a config decides."""
    names = dict(outer)
    for node in graph.node:
        for number, name in enumerate(node.output):
            if name and name not in names:
                names[name] = f"other{len(names)}"
            node.output[number] = names.get(name, name)
    for node in graph.node:
        for number, name in enumerate(node.input):
            node.input[number] = names.get(name, name)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                renamed(attribute.g, names)
    for value in graph.output:
        value.name = names.get(value.name, value.name)


@pytest.mark.parametrize("name", ["sru", "gru", "classify-attention"])
def test_names_that_libraries_make_up_may_differ(name: str) -> None:
    graph = graph_of(name)
    renamed(graph, {value.name: value.name for value in graph.output})
    assert any(name.startswith("other") for node in graph.node for name in node.output)
    check(graph, name)


def test_weights_may_have_any_numbers() -> None:
    graph = graph_of("sru")
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.raw_data = np.full(list(tensor.dims), np.nan, np.float32).tobytes()
    check(graph, "sru")


def first(graph: Any, operator: str) -> Any:
    return next(node for node in graph.node if node.op_type == operator)


def constant(graph: Any, name: str, value: Any) -> str:
    graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def before_the_answer(*nodes: Any) -> Change:
    """Compute nodes of `x`, the answer; the last one has the answer in its place."""

    def change(graph: Any) -> None:
        (last,) = [node for node in graph.node if graph.output[0].name in node.output]
        for node in nodes:
            for number, name in enumerate(node.input):
                if name == "x":
                    node.input[number] = last.input[0]
        last.input[0] = nodes[-1].output[0]
        kept = [node for node in graph.node if node is not last]
        place = list(graph.node).index(last)
        copies = [*kept[:place], *nodes, last, *kept[place:]]
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in copies]
        del graph.node[:]
        graph.node.extend(copies)

    return change


def body_of(graph: Any) -> Any:
    return next(each.g for each in first(graph, "Scan").attribute if each.name == "body")


def huge(graph: Any) -> None:
    size = constant(graph, "size", [2_500_000_000])
    before_the_answer(helper.make_node("Expand", ["x", size], ["y"]))(graph)


def divides(graph: Any) -> None:
    least, minus = constant(graph, "a", np.int64(-(2**63))), constant(graph, "b", np.int64(-1))
    graph.node.append(helper.make_node("Div", [least, minus], ["quotient"]))


def longer_body(graph: Any) -> None:
    body_of(graph).node.append(helper.make_node("Identity", ["state_0"], ["again"]))


def other_body(graph: Any) -> None:
    body_of(graph).node[0].op_type = "Div"


def shadowed(graph: Any) -> None:
    """A node in a body whose output hides a value around it."""
    body = body_of(graph)
    outer = graph.node[0].output[0]
    old, body.node[0].output[0] = body.node[0].output[0], outer
    for node in body.node:
        for number, name in enumerate(node.input):
            node.input[number] = outer if name == old else name


def hidden_weight(graph: Any) -> None:
    """A weight inside a body, with the name of one around it."""
    own = next(each for each in graph.initializer if each.name.endswith("weight_c.forget"))
    body_of(graph).initializer.add().CopyFrom(own)


def input_of_a_body(graph: Any) -> None:
    body_of(graph).input.add().CopyFrom(graph.input[0])


def second_graph(graph: Any) -> None:
    next(each for each in first(graph, "Scan").attribute if each.name == "body").graphs.add()


def other_constant(graph: Any) -> None:
    own = first(graph, "Slice").input[1]
    tensor = next(each for each in graph.initializer if each.name == own)
    tensor.raw_data = np.int64(-(2**63)).tobytes()


def odd_constant(graph: Any) -> None:
    own = first(graph, "Slice").input[1]
    next(each for each in graph.initializer if each.name == own).raw_data = b"odd"


def other_attribute(graph: Any) -> None:
    first(graph, "Transpose").attribute[0].ints[:] = [0, 1]


def more_attributes(graph: Any) -> None:
    first(graph, "Concat").attribute.add(
        name="num_outputs", type=onnx.AttributeProto.INT, i=1 << 31
    )


def attribute_twice(graph: Any) -> None:
    node = first(graph, "Concat")
    node.attribute.append(node.attribute[0])


def other_wire(graph: Any) -> None:
    """A node that reads the weight of another one, with the same shape."""
    node = first(graph, "Mul")
    node.input[0], node.input[1] = node.input[1], node.input[0]


def no_input(graph: Any) -> None:
    first(graph, "Add").input[1] = ""


def foreign_domain(graph: Any) -> None:
    graph.node[0].domain = "com.microsoft"


def less(graph: Any) -> None:
    del graph.node[-2]


def weight_twice(graph: Any) -> None:
    graph.initializer.append(graph.initializer[0])


def weight_of_another_shape(graph: Any) -> None:
    tensor = max(graph.initializer, key=lambda each: len(each.raw_data))
    tensor.dims[0] += 1


def input_in_place_of_a_weight(graph: Any) -> None:
    constant(graph, graph.input[0].name, np.int64(0))


CHANGES: dict[str, tuple[Change, str]] = {
    "huge": (huge, "it has .* nodes"),
    "divides": (divides, "it has .* nodes"),
    "an empty name": (
        before_the_answer(helper.make_node("Max", ["x", ""], ["y"])),
        "it has .* nodes",
    ),
    "less": (less, "it has .* nodes"),
    "a longer body": (longer_body, "it has .* nodes"),
    "another body": (other_body, r"\(Div\) is a"),
    "a hidden value": (shadowed, "is another one, or is there twice"),
    "a hidden weight": (hidden_weight, "a graph inside it has weights of its own"),
    "an input of a body": (input_of_a_body, "it has .* inputs"),
    "a second graph": (second_graph, "has another value of 'body'"),
    "another constant": (other_constant, "reads another constant"),
    "an odd constant": (odd_constant, "reads another constant"),
    "another attribute": (other_attribute, "has another value of 'perm'"),
    "more attributes": (more_attributes, "has other attributes"),
    "an attribute twice": (attribute_twice, "has other attributes"),
    "another wire": (other_wire, "reads another value"),
    "no input": (no_input, "reads another value in ''"),
    "a domain": (foreign_domain, "in an export"),
    "a weight twice": (weight_twice, "is there twice"),
    "a weight of another shape": (weight_of_another_shape, "has another type or shape"),
    "an input that is a constant": (input_in_place_of_a_weight, "is there twice"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_graph_with_anything_else_is_refused(name: str) -> None:
    change, reason = CHANGES[name]
    graph = graph_of("sru")
    change(graph)
    with pytest.raises(CheckpointError, match=f"its graph is not that of its config: .*{reason}"):
        check(graph, "sru")


def test_a_config_of_more_weights_than_a_file_can_hold_is_refused_before_it_is_made() -> None:
    config = config_of("sru")
    rnn = config.rnn.model_copy(update={"hidden_size": 1 << 34})
    with pytest.raises(CheckpointError, match=r"weights, which its .* bytes cannot hold"):
        check_graph(graph_of("sru"), config.model_copy(update={"rnn": rnn}), "sequence", PATH)


def test_a_graph_of_another_config_is_refused() -> None:
    with pytest.raises(CheckpointError, match="its graph is not that of its config"):
        check(graph_of("sru"), "gru")
    with pytest.raises(CheckpointError, match="its graph is not that of its config"):
        check(graph_of("sru"), "sru", "step")
