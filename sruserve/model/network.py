"""A whole network: embedding, cells, head, over a ragged batch."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from sruserve.kernels import RaggedBatch, make_product, single, uses_triton
from sruserve.kernels.chunks import Beside, Inline, SideStream, chunk_rows, plan, run_layers
from sruserve.kernels.decode import Decoder
from sruserve.kernels.devices import CPU, send
from sruserve.kernels.tiles import SAMPLE_VOCABULARY
from sruserve.model.cells.sru import sru_layer, sru_shapes
from sruserve.model.config import ModelConfig
from sruserve.model.state import StateLayout

PIECE_ROWS = 1024
PIECE_BYTES = 8 << 20  # of one layer's product: small enough to be in cache when the scan reads it


def padded_rows(rows: int) -> int:
    """The number of rows that a product of `rows` rows is run with.

    oneDNN compiles a kernel for every number of rows that it meets (a third of a millisecond each
    time); products of a few sizes meet compiled ones. Rows do not depend on how many there are.
    """
    step = 1 if rows <= 8 else 8 if rows <= 64 else 16 if rows <= 256 else 64
    return -(-rows // step) * step


def network_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model folder's weights, with its shape."""
    rnn = config.rnn
    shapes: dict[str, tuple[int, ...]] = {}
    if config.vocab_size is not None:
        shapes["embedding.weight"] = (config.vocab_size, rnn.input_size)
    if rnn.projects_input:
        shapes["rnn.input_to_hidden.weight"] = (rnn.output_size, rnn.input_size)
    for layer in range(rnn.num_layers):
        for name, shape in sru_shapes(rnn, layer).items():
            shapes[f"rnn.rnn_lst.{layer}.{name}"] = shape
    if config.outputs is not None:
        shapes["output.weight"] = (config.outputs, rnn.output_size)
        shapes["output.bias"] = (config.outputs,)
    return shapes


class Network:
    """A trained network, ready to run.

    tensors: as `network_shapes` names them.
    dtype: what it computes in; state and results are float32 all the same.
    fast: on a GPU, kernels chosen by the number of rows; then the bits of a row depend on it.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype,
        device: torch.device = CPU,
        fast: bool = False,
    ) -> None:
        rnn = config.rnn
        self.config = config
        self.dtype, self.device, self.fast = dtype, device, fast
        self.layout = StateLayout((f"{i}.c", (rnn.output_size,)) for i in range(rnn.num_layers))
        self.streams = not rnn.bidirectional
        self._embedding = None
        if config.vocab_size is not None:
            self._embedding = tensors["embedding.weight"].to(device, dtype).contiguous()
        self._input = None
        if rnn.projects_input:
            weight = tensors["rnn.input_to_hidden.weight"]
            self._input = make_product(weight, None, dtype, device, fast)
        self.layers = []
        for layer, entry in enumerate(self.layout.entries):
            prefix = f"rnn.rnn_lst.{layer}."
            own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            self.layers.append(sru_layer(own, rnn, entry.offset, dtype, device, fast))
        self._head = None
        if config.outputs is not None:
            weight, bias = tensors["output.weight"], tensors["output.bias"]
            self._head = make_product(weight, bias, dtype, device, fast)
        # Weights that a row is multiplied with: what a step costs.
        self.weights = sum(t.numel() for t in tensors.values() if t.dim() == 2)
        if config.vocab_size is not None:
            self.weights -= tensors["embedding.weight"].numel()
        widest = 4 * rnn.output_size * dtype.itemsize
        self._piece_rows = max(64, min(PIECE_ROWS, PIECE_BYTES // widest))
        self._chunk_rows = chunk_rows(self.layers)
        self._lane: Beside = SideStream(device) if device.type == "cuda" else Inline()

    @torch.inference_mode()
    def hidden(self, inputs: Tensor, batch: RaggedBatch, wanted: Tensor | None = None) -> Tensor:
        """Run the stack over a batch and return the last layer's outputs.

        inputs: (rows), int64 ids, or (rows, input_size) features.
        wanted: rising row numbers, int64; None is all.

        All on the CPU, apart from the batch's states, which are on the network's device. Returns
        (wanted, output_size) there, in the network's dtype. End states lie in the target rows; a
        sequence longer than a piece needs one.
        """
        if uses_triton(self.device):
            return self._hidden_in_chunks(inputs, batch, wanted)
        rows = self._piece_rows if self.streams else max(1, len(inputs))
        found = []
        for start, end, piece in batch.pieces(rows):
            x = self._run(inputs[start:end], piece)
            if wanted is None:
                x = x[: end - start]
            elif end - start == len(inputs):
                x = x.index_select(0, wanted)
            else:
                x = x.index_select(0, wanted[(wanted >= start) & (wanted < end)] - start)
            found.append(x)
        return found[0] if len(found) == 1 else torch.cat(found)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """The head's scores, (rows, outputs), float32, of hidden outputs (rows, output_size)."""
        assert self._head is not None
        if uses_triton(self.device):  # rounded once, as in a step of a burst
            return self._head(hidden, torch.float32)
        rows = padded_rows(len(hidden))
        if rows != len(hidden):
            return self._head(F.pad(hidden, (0, 0, 0, rows - len(hidden))))[: len(hidden)].float()
        return self._head(hidden).float()

    def decoder(self, states: Tensor) -> Decoder | None:
        """The network as one step of a captured burst over the pool `states`.

        None where steps go through `hidden` and `logits`: on a CPU, or where nothing is generated,
        or for a vocabulary that is too large for the GPU's sampler.
        """
        vocabulary = self.config.vocab_size or 0
        if not uses_triton(self.device) or self._embedding is None or self._head is None:
            return None
        if self.config.task != "generate" or vocabulary > SAMPLE_VOCABULARY:
            return None
        return Decoder(
            embedding=self._embedding,
            layers=self.layers,
            head=self._head,
            states=states,
            entry=self._input,
        )

    def warm_up(self, before: Callable[[int], None] = lambda _: None) -> None:
        """Meet every size of product, so that no request waits for a kernel to be compiled.

        before: called with each number of rows, to set what else the kernels depend on.
        """
        if uses_triton(self.device):
            self._warm_up_triton()
            return
        sizes = {padded_rows(rows) for rows in range(1, self._piece_rows + 1)}
        states = self.layout.allocate(1, self.device)
        for rows in sorted(sizes):
            before(rows)
            hidden = self.hidden(self._zeros(rows), single(states, rows))
            if self._head is not None:
                self.logits(hidden)

    def _warm_up_triton(self) -> None:
        """Have every kernel compiled: for one long sequence, and for many short ones."""
        rows = self._piece_rows
        for offsets in (torch.tensor([0, rows]), torch.arange(rows + 1)):
            nowhere = torch.full((len(offsets) - 1,), -1)
            states = self.layout.allocate(1, self.device)
            batch = RaggedBatch(offsets, states, nowhere, nowhere)
            hidden = self.hidden(self._zeros(rows), batch)
            if self._head is not None:
                self.logits(hidden)

    def _zeros(self, rows: int) -> Tensor:
        """Inputs that mean nothing: ids or features."""
        if self.config.vocab_size is None:
            return torch.zeros(rows, self.config.rnn.input_size)
        return torch.zeros(rows, dtype=torch.int64)

    def _run(self, inputs: Tensor, piece: RaggedBatch) -> Tensor:
        """One piece through all layers; rows past the piece's own are padding."""
        padding = padded_rows(len(inputs)) - len(inputs)
        if padding:
            inputs = F.pad(inputs, (0, 0) * (inputs.dim() - 1) + (0, padding))
        x = self._embedded(inputs)
        for layer in self.layers:
            x = layer(x, piece)
        return x

    def _embedded(self, inputs: Tensor) -> Tensor:
        """What the first layer reads, (rows, in)."""
        if self._embedding is not None:
            x = self._embedding.index_select(0, inputs)
        else:
            x = inputs.to(self.dtype)
        return x if self._input is None else self._input(x)

    def _hidden_in_chunks(
        self, inputs: Tensor, batch: RaggedBatch, wanted: Tensor | None
    ) -> Tensor:
        """`hidden` on a GPU: all rows at once, or long sequences in chunks of time."""
        planned = plan(batch, self._chunk_rows, whole=not self.streams)
        places = None
        if planned.order is not None:
            inputs = inputs[planned.order]
        if wanted is not None or planned.order is not None:
            rows = torch.arange(len(inputs)) if wanted is None else wanted
            places = send(planned.places(rows), self.device)
        inputs = send(inputs, self.device)
        parts = [self._embedded(inputs[first:end]) for first, end, _ in planned.chunks]
        found = run_layers(self.layers, parts, [batch for *_, batch in planned.chunks], self._lane)
        hidden = found[0] if len(found) == 1 else torch.cat(found)
        return hidden if places is None else hidden.index_select(0, places)
