"""A document reader over a ragged batch: two encoders, and attention between them."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sruserve.kernels import RaggedBatch, kernel_name
from sruserve.kernels.decode import Decoder
from sruserve.kernels.devices import CPU
from sruserve.model.cells.stack import Builder
from sruserve.model.config import ModelConfig
from sruserve.model.exactness import exactness
from sruserve.model.gradients import without_gradients
from sruserve.model.heads.segments import Segments
from sruserve.model.heads.softmaxes import activation
from sruserve.model.reader.attention import bilinear
from sruserve.model.reader.config import COLUMNS
from sruserve.model.reader.documents import DocumentEncoder
from sruserve.model.reader.encoders import build_encoder, encode, look_up
from sruserve.model.runtime import Streamable


class Reader(Streamable):
    """A trained document reader (Chen et al. 2017, 3.2), ready to run.

    Its inputs are rows (rows, 7), float32, of the `COLUMNS`: a word's id, its features and the ids
    of its tags. A pair is two sequences: the words of a document, then those of a question,
    whose features are not read. Its outputs are the scores of the document's words as the first and
    the last word of the answer, (rows, 2); those of the question's words are zeros.

    Company changes no result: encoders and products are those of all networks, and attention is
    computed for each pair alone. Consecutive pairs with one document share what does not depend on
    the question, and a document that is stored keeps it for later steps.

    tensors, dtype, device, fast: as for `Network`.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype,
        device: torch.device = CPU,
        fast: bool = False,
    ) -> None:
        assert config.reader is not None
        assert config.vocab_size is not None
        self.config, self.dtype, self.device, self.fast = config, dtype, device, fast
        self.layout, self.crf = config.layout, None
        self.max_step_rows: int | None = None
        self.supports_streaming = False
        reader = config.reader
        builder = Builder(dtype, device, fast)
        self._builder = builder
        self._embedding = config.embedding.make(tensors, config.vocab_size, builder, False)
        question = reader.question_rnn(config.rnn, config.width)
        self._document = build_encoder(config.rnn, "rnn.", tensors, dtype, device, fast)
        self._question = build_encoder(question, "question.", tensors, dtype, device, fast)
        self._merge = None
        if reader.question_merge == "self_attn":
            self._merge = builder.linear(tensors["merge.weight"], tensors["merge.bias"])
        self._ends = [
            builder.linear(tensors[f"{end}.weight"], tensors[f"{end}.bias"])
            for end in ("start", "end")
        ]
        self.documents = DocumentEncoder(config, tensors, builder, self._embedding, self._document)
        self.piece_rows = self._document.piece_rows
        self.weights = sum(
            tensor.numel()
            for name, tensor in tensors.items()
            if tensor.dim() == 2 and name.startswith(("rnn.", "match."))
        )

    @property
    def pooled_width(self) -> int | None:
        """Width of the rows of `hidden`: a score for each end of an answer."""
        return 2

    @property
    def activation(self) -> Callable[[Tensor], Tensor]:
        """What turns scores into probabilities, over the words of a document."""
        return activation("softmax")

    @property
    def kernel(self) -> str:
        """Name of the kernels that compute it."""
        return kernel_name(self.device)

    @property
    def exactness(self) -> str:
        """How exactly results agree in other batches."""
        layers = [*self._document.layers, *self._question.layers]
        return exactness(layers, self.dtype, self.device, self.fast)

    @without_gradients
    def hidden(
        self, inputs: Tensor, batch: RaggedBatch, output_rows: Tensor | None = None
    ) -> Tensor:
        """Score the words of documents as the ends of answers.

        inputs: (rows, 7), on the CPU. batch: a document and a question in turn; its states
        are not used. output_rows: the rows to return, int64; None returns all.

        Returns (output rows, 2), float32, on the network's device.
        """
        offsets: list[int] = batch.offsets.tolist()
        parts = [inputs[begin:end] for begin, end in pairwise(offsets)]
        documents, questions = parts[::2], parts[1::2]
        question_words = look_up(self._embedding, torch.cat(questions), self.device)
        lengths = torch.tensor([len(part) for part in questions])
        states = encode(self._question, question_words, lengths)
        merged = self._merged(states, lengths)
        hidden = self.documents.encode(documents, torch.split(question_words, lengths.tolist()))
        queries = torch.stack([end(merged) for end in self._ends], 1)  # (pairs, 2, width)
        scores = torch.zeros(len(inputs), 2, device=self.device)
        for query, begin, words in zip(queries, offsets[::2], hidden, strict=False):
            scores[begin : begin + len(words)] = bilinear(words, query, self._builder)
        if output_rows is None:
            return scores
        return scores.index_select(0, output_rows.to(self.device))

    def _merged(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Return one row for each question, (questions, width)."""
        segments = Segments(lengths, self.device)
        if self._merge is None:
            return segments.pooled(states, mean=True)
        return segments.attended(states, self._merge(states, torch.float32))

    @without_gradients
    def outputs_of_layers(self, inputs: Tensor, batch: RaggedBatch) -> list[Tensor]:
        """Return the scores of `hidden`: a reader has two stacks, not one."""
        return [self.hidden(inputs, batch)]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the scores of `hidden` as they are."""
        return hidden

    def log_probs(self, scores: Tensor) -> Tensor:
        """Return the logarithms of the probabilities of a document's words, (words, 2)."""
        return scores.log_softmax(0)

    def compare(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Raise: a reader has no classes."""
        raise NotImplementedError

    def decoder(self, states: Tensor) -> Decoder | None:
        """Return None: a reader writes no text."""
        del states
        return None

    def warm_up(self, before: Callable[[int], None] = lambda _: None) -> None:
        """Run every product once, so that no request waits for a kernel's compilation."""
        before(1)
        pair = torch.zeros(2, len(COLUMNS))
        nowhere = torch.full((2,), -1)
        states = self.layout.allocate(1, self.device)
        self.hidden(pair, RaggedBatch(torch.tensor([0, 1, 2]), states, nowhere, nowhere))
        for encoder in (self._document, self._question):
            encoder.warm_up(before)
