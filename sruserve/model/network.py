"""A complete network over a ragged batch: embedding, recurrent layers and head."""

from collections.abc import Callable, Mapping, Sequence
from weakref import proxy

import torch
import torch.nn.functional as F
from torch import Tensor

from sruserve.kernels import (
    RaggedBatch,
    StepLayer,
    kernel_name,
    padded_rows,
    single,
    uses_panels,
    uses_triton,
)
from sruserve.kernels.chunks import chunk_rows, plan, run_layers
from sruserve.kernels.cpu.stack import CompiledStack, compilable, longest_of
from sruserve.kernels.decode import Decoder
from sruserve.kernels.devices import CPU, copy_to_device
from sruserve.kernels.graphs import recorder_for
from sruserve.kernels.input_graphs import InputGraphs, captures_inputs
from sruserve.kernels.layer import CellLayer
from sruserve.kernels.merged import MergedLayers
from sruserve.kernels.projected import projected_ids
from sruserve.kernels.side_stream import side_stream_for
from sruserve.kernels.triton.tiles import DESCRIPTOR_ROWS, SAMPLE_VOCABULARY
from sruserve.model.cells.stack import Builder, Shapes
from sruserve.model.config import ModelConfig
from sruserve.model.embeddings import Embedding
from sruserve.model.exactness import exactness
from sruserve.model.gradients import without_gradients
from sruserve.model.heads.attention_pool import AttentionPool
from sruserve.model.heads.building import make_final, make_head, make_pairs, make_pool
from sruserve.model.heads.crf import LinearChain
from sruserve.model.heads.pooling import PoolLayer, PoolLayers
from sruserve.model.heads.row_layers import make_layers, shapes_of, widest
from sruserve.model.heads.softmaxes import activation
from sruserve.model.runtime import Streamable

PIECE_ROWS = 1024
_SLICED_PIECES = 4  # of rows that are computed together if threads take slices of them
_GRAPHED_CHUNKS = 4  # chunks whose rows all graphs of whole inputs may have
_WARM_SCORES = 1 << 26  # numbers: 256 MiB
PIECE_BYTES = 8 << 20  # of one layer's product: it is still in cache when the scan reads it


def network_shapes(config: ModelConfig) -> Shapes:
    """Return the shapes of a model folder's weights, by tensor name."""
    rnn, head = config.rnn, config.head
    shapes: Shapes = {}
    if config.vocab_size is not None:
        shapes |= config.embedding.shapes(config.vocab_size, config.width, head.tied)
    shapes |= shapes_of(config.input_layers, config.width, "input_layers.")
    shapes |= {f"rnn.{name}": shape for name, shape in rnn.shapes().items()}
    if config.reader is not None:
        return shapes | config.reader.shapes(rnn, config.width)
    pooled = head.pooled_width(config.task, rnn)
    shapes |= head.shapes(config.task, config.outputs, rnn.output_size, pooled)
    return shapes


class Network(Streamable):
    """A trained network, ready to run.

    tensors: weights, named as in `network_shapes`.
    dtype: compute dtype. States and scores are float32 in any case.
    fast: on a GPU, choose kernels by the number of rows; a row's last bits then depend on it.

    layout: the entries of a stream's state row.
    layers: the recurrent layers, in order.
    weights: number of weights that each row is multiplied by, a measure of a step's cost.
    supports_streaming: whether a state can continue a sequence.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype,
        device: torch.device = CPU,
        fast: bool = False,
    ) -> None:
        rnn, head = config.rnn, config.head
        self.config = config
        self.dtype, self.device, self.fast = dtype, device, fast
        # Computed once, because every step reads it.
        self.supports_streaming = config.not_streamable_because is None
        builder = Builder(dtype, device, fast, config.weights is not None)
        self.layout = config.layout
        own = {k.removeprefix("rnn."): v for k, v in tensors.items() if k.startswith("rnn.")}
        stack = rnn.stack(own, self.layout, builder)
        self._input_projection = stack.input_projection
        self._concat, self._along_time = stack.concat, stack.along_time
        self.layers = list(stack.layers)
        self._input_layers = make_layers(config.input_layers, tensors, "input_layers.", builder)
        self._maps_inputs = self._input_layers is not None or self._input_projection is not None
        self._embedding: Embedding | None = None
        if config.vocab_size is not None:
            self._embedding = config.embedding.make(tensors, config.vocab_size, builder, head.tied)
        self._compiled: CompiledStack | None = None
        self._projected: Tensor | None = None  # what the first layer projects of each id
        table, spared = None, 0
        if self._embedding is not None and not self._maps_inputs:
            table = self._embedding.table
        if not self._concat and compilable(self.layers):
            self._compiled = CompiledStack(self.layers, table)
            spared = self._compiled.spared
        elif table is not None:
            self._projected, spared = projected_ids(self.layers[0], table)
        self._pool = make_pool(
            head, config.task, tensors, rnn.output_size, self.layout, builder, rnn.directions
        )
        self._final = make_final(head, rnn.output_size, self.layout)
        self._head = make_head(head, tensors, config.outputs, builder)
        self.activation = activation(config.activation)
        self.crf = LinearChain(tensors, head.crf_window) if head.crf else None
        self._pairs = None
        if config.task == "pair":
            self._pairs = make_pairs(head, tensors, rnn.output_size, builder)
        self.weights = (
            sum(
                tensor.numel()
                for name, tensor in tensors.items()
                if tensor.dim() == 2 and (head.tied or not name.startswith("embedding."))
            )
            - spared
        )
        columns = max(widest(config.input_layers), rnn.widest)
        self.max_step_rows: int | None = None
        self.piece_rows = max(64, min(PIECE_ROWS, PIECE_BYTES // (columns * dtype.itemsize)))
        self._chunk_rows = chunk_rows(self.layers)
        self._side_stream = side_stream_for(device)
        self._graphs = self._input_graphs()

    @property
    def pooled_width(self) -> int | None:
        """Width of the rows of `hidden`: the outputs, pooled as the head needs them."""
        return self.config.head.pooled_width(self.config.task, self.config.rnn)

    @property
    def kernel(self) -> str:
        """Name of the kernels that compute it."""
        return kernel_name(self.device)

    @property
    def exactness(self) -> str:
        """How exactly results agree for other splits of an input and other batches."""
        return exactness(self.layers, self.dtype, self.device, self.fast)

    def rows_at_once(self, rows: int, longest: int) -> int:
        """Return how many of `rows` to compute together; the longest sequence has `longest`."""
        sliced_rows = self.piece_rows * _SLICED_PIECES
        in_slices = self._compiled is not None and self._compiled.slice_rows(
            min(rows, sliced_rows), longest
        )
        return sliced_rows if in_slices else self.piece_rows

    @without_gradients
    def hidden(
        self, inputs: Tensor, batch: RaggedBatch, output_rows: Tensor | None = None
    ) -> Tensor:
        """Run the stack over a batch and return its outputs, pooled as the head needs them.

        inputs: (rows), int64 ids, or (rows, input_size) features.
        batch: its states are on the network's device, its other tensors on the CPU.
        output_rows: the rows to return, int64, in rising order; None returns all rows.

        inputs and output_rows are on the CPU. End states are written to the target rows; a sequence
        that is longer than a piece must have one.

        Returns (output rows, width), in the network's dtype and on its device.
        """
        if self._final is None:
            return self._outputs(inputs, batch, output_rows)
        own = self._final.begin(batch)
        rows = torch.arange(len(inputs)) if output_rows is None else output_rows
        nothing = torch.zeros(0, dtype=torch.int64)
        outputs = self._outputs(inputs, own, nothing if self._final.stands_alone else rows)
        return self._final.end(batch, own.states, rows, outputs)

    def _outputs(self, inputs: Tensor, batch: RaggedBatch, output_rows: Tensor | None) -> Tensor:
        """Compute `hidden`, but for a pooling of end states."""
        if uses_triton(self.device):
            return self._hidden_in_chunks(inputs, batch, output_rows)
        total = inputs.shape[0]
        if self._along_time and total > self.piece_rows and batch.sequences > 1:
            return self._hidden_along_time(inputs, batch, output_rows)
        rows = max(1, total)
        if self.supports_streaming and total > self.piece_rows:
            rows = self.rows_at_once(total, longest_of(batch.offsets))
        outputs = []
        for start, end, piece in batch.pieces(rows):
            x = self._run(inputs[start:end], piece)
            if output_rows is None:
                x = x[: end - start]
            elif end - start == total:
                x = x.index_select(0, output_rows)
            else:
                inside = (output_rows >= start) & (output_rows < end)
                x = x.index_select(0, output_rows[inside] - start)
            outputs.append(x)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    @without_gradients
    def outputs_of_layers(self, inputs: Tensor, batch: RaggedBatch) -> list[Tensor]:
        """Return each layer's outputs for a batch in one piece, (rows, width), on the device."""
        ((*_, batch),) = plan(batch, self._chunk_rows, one_chunk=True).chunks
        x, outputs = self._embedded(copy_to_device(inputs, self.device)), []
        for layer in self.layers:
            x = layer(x, batch)
            outputs.append(x)
        return outputs

    @without_gradients
    def logits(self, hidden: Tensor) -> Tensor:
        """Compute the head's scores, (rows, outputs), float32, of outputs (rows, output_size).

        Their softmax is the distribution of classes, or the one from which tokens are sampled.
        """
        assert self._head is not None
        return self._head(hidden)

    @without_gradients
    def log_probs(self, scores: Tensor) -> Tensor:
        """Compute log-probabilities, (rows, outputs), from the scores of `logits`."""
        assert self._head is not None
        return self._head.log_probs(scores)

    @without_gradients
    def compare(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Compute the scores of pairs, (pairs, outputs), float32, for task pair.

        hidden: (rows, output_size): all steps of each pair's first sequence, then of its second.
        lengths: (2 * pairs), the number of steps of each sequence.
        """
        assert self._pairs is not None
        return self.logits(self._pairs(hidden, lengths))

    def decoder(self, states: Tensor) -> Decoder | None:
        """Return the network as one step of a captured burst over the pool `states`.

        Returns None if steps must use `hidden` and `logits`: on a CPU, for tasks other than
        generate, for a vocabulary too large for the GPU's sampler, and for layers or heads without
        a kernel for one step.
        """
        if not uses_triton(self.device) or self._embedding is None or self._head is None:
            return None
        vocabulary = self.config.vocab_size or 0
        if self.config.task != "generate" or vocabulary > SAMPLE_VOCABULARY:
            return None
        table, head = self._embedding.table, self._head.linear
        layers = [layer for layer in self.layers if isinstance(layer, StepLayer)]
        if table is None or head is None or self._concat or self._input_layers is not None:
            return None
        if len(layers) < len(self.layers):
            return None
        return Decoder(
            embedding=table,
            layers=layers,
            head=head,
            states=states,
            input_projection=self._input_projection,
            merged=MergedLayers.of(layers),
        )

    def warm_up(self, before: Callable[[int], None] = lambda _: None) -> None:
        """Run every size of product once for which oneDNN compiles a kernel, so no request waits.

        before: called with each number of rows, to set everything else the kernels depend on.
        """
        if uses_triton(self.device):
            self._warm_up_triton()
            return
        sizes = {1, self.piece_rows}
        if not uses_panels(self.dtype):
            sizes = {padded_rows(rows, self.dtype) for rows in range(1, self.piece_rows + 1)}
        states = self.layout.allocate(1, self.device)
        for rows in sorted(sizes):
            before(rows)
            self._run_head(self.hidden(self._zeros(rows), single(states, rows)))

    def _warm_up_triton(self) -> None:
        """Compile every kernel: for one long sequence, and for many short ones."""
        # The interpreter compiles nothing, and would take minutes.
        many, few = (DESCRIPTOR_ROWS, self.piece_rows) if self.device.type == "cuda" else (8, 8)
        for rows, offsets in ((many, torch.tensor([0, many])), (few, torch.arange(few + 1))):
            nowhere = torch.full((len(offsets) - 1,), -1)
            states = self.layout.allocate(1, self.device)
            batch = RaggedBatch(offsets, states, nowhere, nowhere)
            self._run_head(self.hidden(self._zeros(rows), batch))

    def _run_head(self, hidden: Tensor) -> None:
        """Run the head over outputs, if there is one."""
        if self.config.task == "pair":
            self.compare(hidden.repeat(2, 1), [len(hidden)] * 2)
        elif self._head is not None:
            self.logits(hidden[: max(1, _WARM_SCORES // (self.config.outputs or 1))])

    def _zeros(self, rows: int) -> Tensor:
        """Return zeros as inputs, ids or features."""
        if self.config.vocab_size is None:
            return torch.zeros(rows, self.config.width)
        return torch.zeros(rows, dtype=torch.int64)

    def _run(self, inputs: Tensor, piece: RaggedBatch) -> Tensor:
        """Run one piece through all layers; rows after the piece's own are padding."""
        if self._compiled is not None:
            x = inputs if self._compiled.reads_ids else self._embedded(inputs)
            x = self._compiled(x, piece)
            return x if self._pool is None else self._pool(x, piece)
        rows = inputs.shape[0]
        padding = padded_rows(rows, self.dtype) - rows
        if padding:
            inputs = F.pad(inputs, (0, 0) * (inputs.dim() - 1) + (0, padding))
        projected = None
        if self._projected is not None:
            projected = self._projected.index_select(0, inputs)
        return self._through(self._embedded(inputs), piece, projected)

    def _through(self, x: Tensor, batch: RaggedBatch, projected: Tensor | None = None) -> Tensor:
        """Run all layers in order over a batch whose tensors are on the device.

        projected: what the first layer projects of x, if it is known.
        """
        outputs = []
        for layer in self.layers:
            if projected is None:
                projected = layer.project(x, batch)
            x = layer.finish(layer.scan(projected, x, batch))
            projected = None
            if self._concat:
                outputs.append(x)
        if self._concat:
            x = torch.cat(outputs, 1)
        return x if self._pool is None else self._pool(x, batch)

    def _embedded(self, inputs: Tensor) -> Tensor:
        """Compute the first layer's input, (rows, in)."""
        x = inputs.to(self.dtype) if self._embedding is None else self._embedding(inputs)
        if self._input_layers is not None:
            x = self._input_layers(x)
        return x if self._input_projection is None else self._input_projection(x)

    def _hidden_along_time(
        self, inputs: Tensor, batch: RaggedBatch, output_rows: Tensor | None
    ) -> Tensor:
        """Compute `hidden` on a CPU, in pieces that hold some steps of every sequence."""
        planned = plan(batch, self.piece_rows, one_chunk=not self.supports_streaming)
        inputs = inputs if planned.order is None else inputs[planned.order]
        parts = [self._run(inputs[a:b], piece)[: b - a] for a, b, piece in planned.chunks]
        hidden = torch.cat(parts)
        rows = torch.arange(len(hidden)) if output_rows is None else output_rows
        return hidden.index_select(0, planned.places(rows))

    def _input_graphs(self) -> InputGraphs | None:
        """Graphs of single chunks on a GPU, if no layer needs the host."""
        if not captures_inputs(self.device):
            return None
        if self._concat or self._input_layers is not None:
            return None
        if self._final is not None:
            return None  # it makes states for each batch, and a graph reads those it was made for
        if not all(isinstance(layer, CellLayer) for layer in self.layers):
            return None
        if self._pool is not None and not isinstance(self._pool, PoolLayer):
            return None
        max_rows = _GRAPHED_CHUNKS * self._chunk_rows
        # In a circle, an unloaded network would keep its memory: servers rarely collect garbage.
        network = proxy(self)

        def in_one_piece(inputs: Tensor, batch: RaggedBatch) -> Tensor:
            outputs: Tensor = network._through(network._embedded(inputs), batch)
            return outputs

        return InputGraphs(in_one_piece, self.device, max_rows, recorder_for(self.device))

    def _hidden_in_chunks(
        self, inputs: Tensor, batch: RaggedBatch, output_rows: Tensor | None
    ) -> Tensor:
        """Compute `hidden` on a GPU: all rows at once, or long sequences in chunks of time."""
        if self._graphs is not None and len(inputs) <= self._chunk_rows:
            graphed = self._graphs.run(inputs, batch)
            if graphed is not None:
                rows = None if output_rows is None else copy_to_device(output_rows, self.device)
                return graphed.clone() if rows is None else graphed.index_select(0, rows)
        planned = plan(
            batch, self._chunk_rows, one_chunk=not self.supports_streaming or self._concat
        )
        places = None
        if planned.order is not None:
            inputs = inputs[planned.order]
        if output_rows is not None or planned.order is not None:
            rows = torch.arange(len(inputs)) if output_rows is None else output_rows
            places = copy_to_device(planned.places(rows), self.device)
        inputs = copy_to_device(inputs, self.device)
        batches = [batch for *_, batch in planned.chunks]
        if len(batches) == 1:
            hidden = self._through(self._embedded(inputs), batches[0])
        else:
            parts = [self._embedded(inputs[first:end]) for first, end, _ in planned.chunks]
            layers = self.layers
            if isinstance(self._pool, PoolLayer | PoolLayers | AttentionPool):
                layers = [*layers, self._pool]
            hidden = torch.cat(run_layers(layers, parts, batches, self._side_stream))
        return hidden if places is None else hidden.index_select(0, places)
