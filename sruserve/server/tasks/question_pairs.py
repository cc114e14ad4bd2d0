"""The pairs of a document and a question that a reader answers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sruserve.model.reader.config import COLUMNS, ReaderConfig
from sruserve.model.reader.encoded import StoredDocument
from sruserve.model.reader.network import Reader
from sruserve.model.reader.words import Document
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.repository.passage import DocumentPreset, Passage
from sruserve.server.repository.passage_reading import reader_of
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.annotations import Annotations

ROW_BYTES = 4 * len(COLUMNS)


@dataclass(slots=True, kw_only=True)
class Pair(SequenceInput):
    """The rows of a document's words, then of a question's.

    stored: keeps what the network computes of the document alone while the job runs.
    stored_bytes: the memory that this takes, if this pair counts it.
    """

    document: Passage
    stored: StoredDocument | None = None
    stored_bytes: int = 0


def pairs_of(
    reader: ReaderConfig,
    documents: Sequence[Passage],
    questions: Sequence[Passage],
    annotations: Annotations,
    preset: DocumentPreset | None,
) -> list[Pair]:
    """The rows of each question's pair. Consecutive pairs of one document describe it once."""
    pairs, document = [], documents[0]
    described = None if preset is None else preset.described
    differ = preset is None and (len(documents) > 1 or annotations.differ)
    for i, question in enumerate(questions):
        of_words, lemmas = annotations.of(i, documents[i % len(documents)].words, question.words)
        if described is None or differ:
            document = documents[i % len(documents)]
            described = Document(reader, document.ids, document.words, of_words)
        rows = described.with_question(question.ids, question.words, lemmas)
        pairs.append(Pair(rows, first=len(document.words), document=document))
    return pairs


def share_document(served: ServedModel, pairs: Sequence[Pair]) -> None:
    """Have the pairs of one document share its encoder's outputs in all steps of their job."""
    network = served.model.network
    if not isinstance(network, Reader) or reader_of(served).reads_question:
        return  # what such a reader shares is computed in less time than a step takes
    words = len(pairs[0].document.words)
    stored = network.documents.store(torch.from_numpy(pairs[0].inputs[:words]))
    for pair in pairs:
        pair.stored = stored
    pairs[0].stored_bytes = network.documents.stored_bytes(words)
