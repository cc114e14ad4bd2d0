"""Draw the graphs of a small model from the graphs themselves: `python -m docs.graphs.draw`.

Writes step.svg and sequence.svg beside this file. Needs the system package graphviz.
"""

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx
import onnx_ir as ir
import torch
from onnx import AttributeProto, GraphProto, NodeProto

from sruserve.export.onnx.network import GraphMaker
from sruserve.model.cells.sru import SRUConfig
from sruserve.model.config import ModelConfig
from sruserve.model.network import network_shapes

FOLDER = Path(__file__).parent
KINDS = ("step", "sequence")
COLOURS = {
    "Gemm": "#cfe0f7",
    "MatMul": "#cfe0f7",
    "Gather": "#cfe0f7",
    "GatherND": "#e4d7f5",
    "Flatten": "#e4d7f5",
    "Reshape": "#e4d7f5",
    "Slice": "#e4d7f5",
    "Split": "#e4d7f5",
    "Concat": "#e4d7f5",
    "Sigmoid": "#f9d5cf",
    "Scan": "#fbeec2",
}
STYLE = """rankdir=TB; nodesep=0.2; ranksep=0.25; bgcolor="white"; compound=true;
node [shape=box, style=filled, fillcolor="#f2f2f2", color="#777777", fontname="Helvetica",
fontsize=10, height=0.28, margin="0.09,0.04"];
edge [color="#777777", arrowsize=0.5, fontname="Helvetica", fontsize=8, fontcolor="#555555"];"""


_REDUNDANT = re.compile(r"<!--.*?-->\n?|<title>.*?</title>\n?|<!DOCTYPE.*?>\n", re.DOTALL)


def small_graph(kind: str) -> GraphProto:
    """The graph of a language model with one layer of SRU, 65 ids and 384 channels."""
    config = ModelConfig(
        architectures=("SRUForCausalLM",),
        model_type="sru",
        task="generate",
        dtype="float32",
        vocab_size=65,
        rnn=SRUConfig(input_size=384, hidden_size=384, num_layers=1),
    )
    maker = GraphMaker(config, {n: torch.zeros(s) for n, s in network_shapes(config).items()})
    model = maker.step({}) if kind == "step" else maker.sequence({})
    return onnx.load_from_string(ir.to_proto(model).SerializeToString()).graph


def drawn_operators(graph: GraphProto) -> list[str]:
    """The operators of a graph and of the bodies in it, as they are drawn."""
    operators = []
    for node in graph.node:
        if node.op_type != "Identity":
            operators.append(node.op_type)
        for body in _bodies(node):
            operators += drawn_operators(body)
    return operators


def dot_of(graph: GraphProto) -> str:
    """A graph in graphviz's language."""
    lines = "\n".join(_lines(graph, "", {}))
    return f"digraph {{\n{STYLE}\n{lines}\n}}\n"


def _lines(graph: GraphProto, prefix: str, outside: Mapping[str, str]) -> Iterator[str]:
    """The nodes and edges of a graph. outside: shapes of the weights of a body's graph."""
    weights = {**outside, **{w.name: _shape(w.dims) for w in graph.initializer}}
    made_by = {value.name: prefix + value.name for value in graph.input}  # nodes of graphviz
    for value in (*graph.input, *graph.output):
        dims = value.type.tensor_type.shape.dim
        shape = _shape([d.dim_param or d.dim_value for d in dims])
        label = f"{value.name} {shape}" if dims else value.name
        yield _node(prefix + value.name, label, "#d6efd8")
    for number, node in enumerate(graph.node):
        own = f"{prefix}node{number}"
        made_by |= dict.fromkeys(node.output, own)
        if node.op_type == "Identity":
            made_by[node.output[0]] = made_by[node.input[0]]
            continue
        shown = [
            f"{name.removeprefix('layers.0.')} {weights[name]}"
            for name in node.input
            if name in weights and not name.startswith("const")
        ]
        yield _node(own, "\\n".join([node.op_type, *shown]), COLOURS.get(node.op_type, "#f2f2f2"))
        for name in node.input:
            if name in made_by:
                yield f'"{made_by[name]}" -> "{own}";'
        for body in _bodies(node):
            yield f'subgraph "cluster{own}" {{ style="rounded,dashed"; color="#999999";'
            yield 'fontname="Helvetica"; fontsize=10; label="the Scan\'s body: one step";'
            yield from _lines(body, f"{own}.", weights)
            yield "}"
            inside = f"{own}.{body.input[0].name}"
            yield f'"{own}" -> "{inside}" [style=dashed, arrowhead=none, lhead="cluster{own}"];'
    for value in graph.output:
        yield f'"{made_by[value.name]}" -> "{prefix}{value.name}";'


def _node(name: str, label: str, colour: str) -> str:
    return f'"{name}" [label="{label}", fillcolor="{colour}"];'


def _shape(dims: Iterable[str | int]) -> str:
    return "\N{MULTIPLICATION SIGN}".join(map(str, dims)) or "1"


def _bodies(node: NodeProto) -> list[GraphProto]:
    return [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]


def main() -> None:
    for kind in KINDS:
        command = ["dot", "-Tsvg"]
        drawn = subprocess.run(  # noqa: S603
            command, input=dot_of(small_graph(kind)), capture_output=True, text=True, check=True
        ).stdout
        (FOLDER / f"{kind}.svg").write_text(_REDUNDANT.sub("", drawn))


if __name__ == "__main__":
    main()
