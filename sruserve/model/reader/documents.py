"""The document's side of a reader: what describes its words, and what no question changes."""

from collections.abc import Callable, Mapping, Sequence
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from sruserve.kernels.devices import copy_to_device
from sruserve.model.cells.stack import Builder
from sruserve.model.config import ModelConfig
from sruserve.model.network import Network
from sruserve.model.reader.attention import aligned
from sruserve.model.reader.config import COLUMNS, TAGS, ReaderConfig
from sruserve.model.reader.encoded import EncodedDocument, StoredDocument
from sruserve.model.reader.encoders import encode, look_up


class DocumentEncoder:
    """Describes the words of documents by all that a reader's config names, and encodes them.

    embedding: of words, by their ids. encoder: reads the described words.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        builder: Builder,
        embedding: Callable[[Tensor], Tensor],
        encoder: Network,
    ) -> None:
        assert config.reader is not None
        self._reader = reader = config.reader
        self._width, self._output_size = config.width, config.rnn.output_size
        self._dtype, self._device, self._builder = builder.dtype, builder.device, builder
        self._embedding, self._encoder = embedding, encoder
        self._match = None
        if reader.aligned:
            self._match = builder.linear(tensors["match.weight"], tensors["match.bias"])
        self._tables = {name: builder.put(tensors[f"tags.{name}.weight"]) for name in reader.tables}
        self._one_hot = {
            tag: builder.put(_one_hot(reader, tag))
            for tag in TAGS
            if reader.labels(tag) and tag not in reader.tables
        }
        # What is computed of a document alone depends on these columns of its rows.
        self._columns = [0]
        if not reader.reads_question:
            self._columns += [i for i, name in enumerate(COLUMNS) if _describes(reader, name)]
        self._stored: WeakValueDictionary[bytes, StoredDocument] = WeakValueDictionary()

    def stored_bytes(self, words: int) -> int:
        """Return the bytes of device memory that a stored document of `words` words takes."""
        if not self._reader.reads_question:
            width = self._output_size
        else:
            width = self._width * (1 if self._match is None else 2)
        return words * width * self._dtype.itemsize

    def store(self, document: Tensor) -> StoredDocument:
        """Have what is computed of a document alone kept by the next step that reads it.

        document: rows (words, 7). Later steps use it, until nothing refers to what this returns.
        """
        key = self._key(document)
        stored = self._stored.get(key)
        if stored is None:
            stored = self._stored[key] = StoredDocument()
        return stored

    def _key(self, document: Tensor) -> bytes:
        return document[:, self._columns].numpy().tobytes()

    def encode(self, documents: Sequence[Tensor], questions: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs for the words of each document, (words, width).

        questions: embeddings, of the question of each.
        """
        alone = self._encoded_alone(documents)
        if not self._reader.reads_question:
            return [encoded.rows for encoded in alone]
        own = list(range(len(documents)))
        aligned_words: Sequence[Tensor | None] = [None] * len(documents)
        if self._match is None:
            own = _unshared(documents)
        else:
            lengths = [len(question) for question in questions]
            keys = torch.split(self._matched(torch.cat(list(questions))), lengths)
            aligned_words = [
                aligned(encoded.keys, key, question, self._builder)
                for encoded, key, question in zip(alone, keys, questions, strict=True)
                if encoded.keys is not None
            ]
        firsts = sorted(set(own))
        rows = [self._described(documents[i], alone[i].rows, aligned_words[i]) for i in firsts]
        outputs = dict(zip(firsts, self._outputs(rows), strict=True))
        return [outputs[i] for i in own]

    def _encoded_alone(self, documents: Sequence[Tensor]) -> list[EncodedDocument]:
        """Return what is computed of each document alone; of neighbours that are one, once."""
        own = _unshared([document[:, self._columns] for document in documents])
        firsts = sorted(set(own))
        stored = {i: self._stored.get(self._key(documents[i])) for i in firsts if self._stored}
        encoded = {i: each.encoded for i, each in stored.items() if each and each.encoded}
        if others := [i for i in firsts if i not in encoded]:
            computed = self._encode_alone([documents[i] for i in others])
            encoded.update(zip(others, computed, strict=True))
            for i in others:
                if (each := stored.get(i)) is not None:
                    each.encoded = encoded[i].copy()
        return [encoded[i] for i in own]

    def _encode_alone(self, documents: Sequence[Tensor]) -> list[EncodedDocument]:
        """Compute what depends on no question."""
        sizes = [len(document) for document in documents]
        words = look_up(self._embedding, torch.cat(list(documents)), self._device)
        embedded = torch.split(words, sizes)
        if not self._reader.reads_question:
            rows = [
                self._described(document, part, None)
                for document, part in zip(documents, embedded, strict=True)
            ]
            return [EncodedDocument(outputs, None) for outputs in self._outputs(rows)]
        if self._match is None:
            return [EncodedDocument(part, None) for part in embedded]
        keys = torch.split(self._matched(words), sizes)
        return [EncodedDocument(*parts) for parts in zip(embedded, keys, strict=True)]

    def _outputs(self, rows: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the outputs of the document's encoder for the words of each document."""
        sizes = [len(part) for part in rows]
        outputs = encode(self._encoder, torch.cat(list(rows)), torch.tensor(sizes))
        return torch.split(outputs, sizes)

    def _described(self, document: Tensor, words: Tensor, aligned_words: Tensor | None) -> Tensor:
        """Return the parts of each word of a document, side by side."""
        rows = copy_to_device(document, self._device)
        parts = {"words": words}
        if self._reader.features:
            parts["features"] = self._features(rows)
        if aligned_words is not None:
            parts["aligned"] = aligned_words
        for tag, table in self._tables.items():
            parts[tag] = table.index_select(0, rows[:, COLUMNS.index(tag)].to(torch.int64))
        return torch.cat([parts[part] for part in self._reader.inputs], 1)

    def _features(self, rows: Tensor) -> Tensor:
        """Return the features of words, (words, features), from rows (words, 7)."""
        names = self._reader.features
        features = torch.zeros(len(rows), len(names), dtype=self._dtype, device=self._device)
        for tag, table in self._one_hot.items():
            features += table.index_select(0, rows[:, COLUMNS.index(tag)].to(torch.int64))
        for column, name in enumerate(names):
            if name in COLUMNS:
                features[:, column] = rows[:, COLUMNS.index(name)]
        return features

    def _matched(self, words: Tensor) -> Tensor:
        """Return what alignment compares: ReLU(W e + b)."""
        assert self._match is not None
        return self._match(words).relu_()


def _describes(reader: ReaderConfig, column: str) -> bool:
    """Return whether a reader describes a document's words by a column beside the id."""
    return column in reader.features or (column in TAGS and bool(reader.labels(column)))


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
