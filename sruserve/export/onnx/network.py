"""A network as an ONNX graph: one step of many streams, or whole sequences.

Inputs and outputs, with O outputs of the network and W numbers in a state row:

- step: `ids` (batch) or `features` (batch, n), `state` (batch, W) -> `logits` (batch, O), `state`
  of the next step as `new_state`.
- sequence: `ids` (batch, time) or `features` (batch, time, n), `lengths` (batch), `state` ->
  `logits` (batch, O), or (batch, time, O) of a network that answers at every step, `new_state`.

A classifier has `scores` beside its logits, which are what a reply shows. A tagger with a CRF has
the `labels` of the best path; they are those of whole inputs, whatever `state` is. A regressor has
`values` instead, and an encoder `hidden`.
"""

from collections.abc import Callable, Mapping
from typing import Literal

import onnx_ir as ir
from torch import Tensor

from sruserve.export.onnx.attention import add_srupp_layer
from sruserve.export.onnx.convolution import add_convolution_layer
from sruserve.export.onnx.crf import add_best_path
from sruserve.export.onnx.element_wise import add_cell_layer
from sruserve.export.onnx.embedding import add_embedding
from sruserve.export.onnx.gated import add_gated_layer
from sruserve.export.onnx.graph import FLOAT, INT, Graph, Value
from sruserve.export.onnx.heads import add_activation, add_head
from sruserve.export.onnx.pooling import add_pair_features, add_pooling, zeros
from sruserve.export.onnx.row_layers import add_row_layers
from sruserve.export.onnx.signature import answer_of
from sruserve.export.onnx.state import StateRows
from sruserve.export.onnx.steps import OneStep, Steps, WholeSequences
from sruserve.export.plain import PlainBuilder, plain
from sruserve.kernels.convolution import ConvolutionLayer
from sruserve.kernels.gated import GatedLayer
from sruserve.kernels.layer import CellLayer, Layer
from sruserve.kernels.srupp import SRUppLayer
from sruserve.model.cells.stack import Stack
from sruserve.model.config import LABELLED, ModelConfig

GraphKind = Literal["step", "sequence"]


class GraphMaker:
    """Makes the graphs of a network.

    tensors: its weights, named as in `network_shapes`. Those that were restored from int8 are int8
    in the graphs of a config that says so.
    make_graph: of a name, and whether weights are stored as int8.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        make_graph: Callable[[str, bool], Graph] = Graph,
    ) -> None:
        self._config, self._tensors, self._make_graph = config, tensors, make_graph
        self._integer = config.weights == "int8"
        self.layout = config.layout
        own = {k.removeprefix("rnn."): v for k, v in tensors.items() if k.startswith("rnn.")}
        self._stack: Stack = config.rnn.stack(own, self.layout, PlainBuilder())

    def graph(self, kind: GraphKind, metadata: Mapping[str, str]) -> ir.Model:
        """Make a graph with these properties."""
        return self.step(metadata) if kind == "step" else self.sequence(metadata)

    def step(self, metadata: Mapping[str, str]) -> ir.Model:
        """Make the graph of one step, without control flow; the network must be streamable."""
        graph = self._new_graph("step")
        inputs = self._inputs(graph, "", ("batch",))
        rows = graph.input("state", FLOAT, ("batch", self.layout.width))
        state, steps = StateRows(graph, rows), OneStep(graph, rows)
        hidden = self._hidden(graph, inputs, state, steps)
        if not self._config.answers_by_step:
            hidden = self._pooled(graph, hidden, state, steps)
        self._outputs(graph, hidden, ("batch",))
        graph.output("new_state", state.end(self.layout.width), ("batch", self.layout.width))
        return graph.model(metadata)

    def sequence(self, metadata: Mapping[str, str]) -> ir.Model:
        """Make the graph of whole sequences."""
        graph, config = self._new_graph("sequence"), self._config
        if config.task == "pair":
            self._pairs(graph)
            return graph.model(metadata)
        inputs = self._inputs(graph, "", ("batch", "time"))
        steps = WholeSequences(graph, inputs, graph.input("lengths", INT, ("batch",)))
        state = StateRows(graph, graph.input("state", FLOAT, ("batch", self.layout.width)))
        hidden = self._hidden(graph, self._rows(graph, inputs), state, steps)
        if config.answers_by_step:
            self._outputs(graph, hidden, ("batch", "time"), steps)
        else:
            hidden = self._pooled(graph, hidden, state, steps)
            self._outputs(graph, hidden, ("batch",))
        graph.output("new_state", state.end(self.layout.width), ("batch", self.layout.width))
        return graph.model(metadata)

    def _new_graph(self, name: str) -> Graph:
        graph = self._make_graph(name, self._integer)
        graph.rescales = getattr(self._config.rnn, "rescale", False)
        return graph

    def _pairs(self, graph: Graph) -> None:
        """Add both sides of pairs, whose inputs end in `_a` and `_b`, and their comparison."""
        sides: list[tuple[Value, Steps]] = []
        for end in ("_a", "_b"):
            inputs = self._inputs(graph, end, ("batch", f"time{end}"))
            lengths = graph.input(f"lengths{end}", INT, ("batch",))
            steps = WholeSequences(graph, inputs, lengths)
            state = StateRows(graph, zeros(graph, steps.counts(), self.layout.width))
            hidden = self._hidden(graph, self._rows(graph, inputs), state, steps)
            sides.append((hidden, steps))
        features = add_pair_features(graph, self._config, self._tensors, sides)
        self._outputs(graph, features, ("batch",))

    def _inputs(self, graph: Graph, end: str, shape: tuple[str, ...]) -> Value:
        if self._config.vocab_size is not None:
            return graph.input(f"ids{end}", INT, shape)
        return graph.input(f"features{end}", FLOAT, (*shape, self._config.width))

    def _rows(self, graph: Graph, inputs: Value) -> Value:
        """Return ids or features of sequences as rows, in the order of time."""
        if self._config.vocab_size is not None:
            return graph.op.Reshape(graph.op.Transpose(inputs, perm=[1, 0]), [-1])
        return graph.op.Flatten(graph.op.Transpose(inputs, perm=[1, 0, 2]), axis=2)

    def _hidden(self, graph: Graph, inputs: Value, state: StateRows, steps: Steps) -> Value:
        """Run the stack over ids (...) or features (..., n); returns (..., width)."""
        config, tensors = self._config, self._tensors
        x = inputs
        if config.vocab_size is not None:
            x = add_embedding(graph, config, tensors, inputs)
        x = add_row_layers(graph, config.input_layers, tensors, "input_layers.", x)
        if self._stack.input_projection is not None:
            x = graph.linear(x, plain(self._stack.input_projection), "input_projection")
        outputs = []
        for number, layer in enumerate(self._stack.layers):
            with graph.scope(f"layers.{number}"):
                x = _add_layer(graph, layer, x, state, steps)
            outputs.append(x)
        return graph.op.Concat(*outputs, axis=-1) if self._stack.concat else x

    def _pooled(self, graph: Graph, hidden: Value, state: StateRows, steps: Steps) -> Value:
        return add_pooling(graph, self._config, self._tensors, hidden, state, steps, self.layout)

    def _outputs(
        self,
        graph: Graph,
        hidden: Value,
        shape: tuple[str, ...],
        steps: WholeSequences | None = None,
    ) -> None:
        """Add the outputs that follow from rows (rows, width).

        shape: that of the rows in the outputs. steps: None if there is one row for each sequence.
        """
        config, op, name = self._config, graph.op, answer_of(self._config)

        def shaped(rows: Value) -> Value:
            return rows if steps is None else op.Transpose(steps.with_time(rows), perm=[1, 0, 2])

        if config.outputs is None:
            graph.output(name, shaped(hidden), (*shape, config.rnn.output_size))
            return
        logits = add_head(graph, config, self._tensors, hidden)
        if config.head.crf and steps is not None:
            path = add_best_path(graph, self._tensors, logits, steps)
            graph.output("labels", op.Transpose(path, perm=[1, 0]), shape, INT)
        graph.output(name, shaped(logits), (*shape, config.outputs))
        if config.task in LABELLED:
            scores = add_activation(graph, config, logits)
            graph.output("scores", shaped(scores), (*shape, config.outputs))


def _add_layer(graph: Graph, layer: Layer, x: Value, state: StateRows, steps: Steps) -> Value:
    if isinstance(layer, CellLayer):
        return add_cell_layer(graph, layer, x, state, steps)
    if isinstance(layer, GatedLayer):
        return add_gated_layer(graph, layer, x, state, steps)
    if isinstance(layer, ConvolutionLayer):
        return add_convolution_layer(graph, layer, x, state, steps)
    assert isinstance(layer, SRUppLayer)
    return add_srupp_layer(graph, layer, x, state, steps)
