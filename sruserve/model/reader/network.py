"""A document reader over a ragged batch: two encoders, and attention between them."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sruserve.kernels import RaggedBatch, kernel_name
from sruserve.kernels.decode import Decoder
from sruserve.kernels.devices import CPU, copy_to_device
from sruserve.model.cells.stack import Builder, StackConfig
from sruserve.model.config import ModelConfig
from sruserve.model.exactness import exactness
from sruserve.model.gradients import without_gradients
from sruserve.model.heads.segments import Segments
from sruserve.model.heads.softmaxes import activation
from sruserve.model.network import Network
from sruserve.model.reader.attention import aligned, bilinear
from sruserve.model.reader.config import COLUMNS, TAGS, ReaderConfig
from sruserve.model.runtime import Streamable


class Reader(Streamable):
    """A trained document reader (Chen et al. 2017, 3.2), ready to run.

    Its inputs are rows (rows, 7), float32, of the `COLUMNS`: a word's id, its features and the ids
    of its tags. A pair is two sequences: the words of a document, then those of a question,
    whose features are not read. Its outputs are the scores of the document's words as the first and
    the last word of the answer, (rows, 2); those of the question's words are zeros.

    Company changes no result: encoders and products are those of all networks, and attention is
    computed for each pair alone. Consecutive pairs with one document share what does not depend on
    the question.

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
        self._reader = reader = config.reader
        builder = Builder(dtype, device, fast)
        self._builder = builder
        self._embedding = config.embedding.make(tensors, config.vocab_size, builder, False)
        question = reader.question_rnn(config.rnn, config.width)
        self._document = _encoder(config.rnn, "rnn.", tensors, dtype, device, fast)
        self._question = _encoder(question, "question.", tensors, dtype, device, fast)
        self.match = None
        if reader.aligned:
            self.match = builder.linear(tensors["match.weight"], tensors["match.bias"])
        self._merge = None
        if reader.question_merge == "self_attn":
            self._merge = builder.linear(tensors["merge.weight"], tensors["merge.bias"])
        self._ends = [
            builder.linear(tensors[f"{end}.weight"], tensors[f"{end}.bias"])
            for end in ("start", "end")
        ]
        self._tables = {name: builder.put(tensors[f"tags.{name}.weight"]) for name in reader.tables}
        self._one_hot = {
            tag: builder.put(_one_hot(reader, tag))
            for tag in TAGS
            if reader.labels(tag) and tag not in reader.tables
        }
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
    def hidden(self, inputs: Tensor, batch: RaggedBatch, wanted: Tensor | None = None) -> Tensor:
        """Score the words of documents as the ends of answers.

        inputs: (rows, 7), on the CPU. batch: a document and a question in turn; its states
        are not used. wanted: the rows to return, int64; None returns all.

        Returns (wanted, 2), float32, on the network's device.
        """
        offsets: list[int] = batch.offsets.tolist()
        parts = [inputs[begin:end] for begin, end in pairwise(offsets)]
        documents, questions = parts[::2], parts[1::2]
        # What does not attend to the question depends on all of a word's row, the rest on its id.
        own = _unshared(documents if self.match is None else [part[:, :1] for part in documents])
        question_words = self._embedded(torch.cat(questions))
        lengths = torch.tensor([len(part) for part in questions])
        states = self._encoded(self._question, question_words, lengths)
        merged = self._merged(states, lengths)
        hidden = self._encoded_documents(
            documents, own, torch.split(question_words, lengths.tolist())
        )
        queries = torch.stack([end(merged) for end in self._ends], 1)  # (pairs, 2, width)
        scores = torch.zeros(len(inputs), 2, device=self.device)
        for query, begin, words in zip(queries, offsets[::2], hidden, strict=False):
            scores[begin : begin + len(words)] = bilinear(words, query, self._builder)
        return scores if wanted is None else scores.index_select(0, wanted.to(self.device))

    def _encoded_documents(
        self, documents: Sequence[Tensor], own: Sequence[int], questions: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the outputs for the words of each document, (words, width).

        own: for each pair, the first of the pairs that have its document. questions: embeddings.
        """
        firsts = sorted(set(own))
        words = self._embedded(torch.cat([documents[i] for i in firsts]))
        sizes = [len(documents[i]) for i in firsts]
        embedded = dict(zip(firsts, torch.split(words, sizes), strict=True))
        if self.match is None:
            rows = [self._described(documents[i], embedded[i], None) for i in firsts]
            outputs = self._encoded(self._document, torch.cat(rows), torch.tensor(sizes))
            by_document = dict(zip(firsts, torch.split(outputs, sizes), strict=True))
            return [by_document[i] for i in own]
        keys = dict(zip(firsts, torch.split(self._matched(words), sizes), strict=True))
        lengths = [len(question) for question in questions]
        question_keys = torch.split(self._matched(torch.cat(list(questions))), lengths)
        rows = []
        for i, document in enumerate(documents):
            first = own[i]
            found = aligned(keys[first], question_keys[i], questions[i], self._builder)
            rows.append(self._described(document, embedded[first], found))
        sizes = [len(document) for document in documents]
        outputs = self._encoded(self._document, torch.cat(rows), torch.tensor(sizes))
        return list(torch.split(outputs, sizes))

    def _described(self, document: Tensor, words: Tensor, found: Tensor | None) -> Tensor:
        """Return the parts of each word of a document, side by side."""
        rows = copy_to_device(document, self.device)
        parts = {"words": words}
        if self._reader.features:
            parts["features"] = self._features(rows)
        if found is not None:
            parts["aligned"] = found
        for tag, table in self._tables.items():
            parts[tag] = table.index_select(0, rows[:, COLUMNS.index(tag)].to(torch.int64))
        return torch.cat([parts[part] for part in self._reader.inputs], 1)

    def _features(self, rows: Tensor) -> Tensor:
        """Return the features of words, (words, features), from rows (words, 7)."""
        names = self._reader.features
        features = torch.zeros(len(rows), len(names), dtype=self.dtype, device=self.device)
        for tag, table in self._one_hot.items():
            features += table.index_select(0, rows[:, COLUMNS.index(tag)].to(torch.int64))
        for column, name in enumerate(names):
            if name in COLUMNS:
                features[:, column] = rows[:, COLUMNS.index(name)]
        return features

    def _embedded(self, rows: Tensor) -> Tensor:
        """Return the embeddings of words, (rows, width)."""
        return self._embedding(copy_to_device(rows[:, 0].to(torch.int64), self.device))

    def _matched(self, words: Tensor) -> Tensor:
        """Return what alignment compares: ReLU(W e + b)."""
        assert self.match is not None
        return self.match(words).relu_()

    def _merged(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Return one row for each question, (questions, width)."""
        segments = Segments(lengths, self.device)
        if self._merge is None:
            return segments.pooled(states, mean=True)
        return segments.attended(states, self._merge(states, torch.float32))

    def _encoded(self, encoder: Network, x: Tensor, lengths: Tensor) -> Tensor:
        """Run an encoder over whole sequences that begin from zeros."""
        offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
        nowhere = torch.full((len(lengths),), -1)
        states = encoder.layout.allocate(1, self.device)
        return encoder.hidden(x, RaggedBatch(offsets, states, nowhere, nowhere))

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


def _encoder(
    rnn: StackConfig,
    prefix: str,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
    device: torch.device,
    fast: bool,
) -> Network:
    """Build one of the two encoders, a network over features."""
    own = {
        f"rnn.{name.removeprefix(prefix)}": tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    config = ModelConfig(architectures=(), model_type=rnn.family, task="encode", rnn=rnn)
    return Network(config, own, dtype, device, fast)


def _one_hot(reader: ReaderConfig, tag: str) -> Tensor:
    """Return the features of each tag of a kind, and of an unknown one, (tags + 1, features)."""
    labels = reader.labels(tag)
    table = torch.zeros(len(labels) + 1, len(reader.features))
    for row, label in enumerate(labels):
        table[row, reader.features.index(f"{tag}={label}")] = 1
    return table


def _unshared(documents: Sequence[Tensor]) -> list[int]:
    """Return for each document the first of those before it that it equals, without a gap."""
    firsts: list[int] = []
    for i, document in enumerate(documents):
        shared = i and torch.equal(document, documents[i - 1])
        firsts.append(firsts[-1] if shared else i)
    return firsts
