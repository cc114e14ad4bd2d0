"""A reader's presets: named documents, which are read once, when their model is loaded."""

from collections.abc import Mapping
from typing import Self

import numpy as np
import torch
from pydantic import TypeAdapter, model_validator

from sruserve.model.folder_files import PRESETS_FILE
from sruserve.model.reader.network import Reader
from sruserve.model.reader.words import Document
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import StateOutput
from sruserve.server.errors import InvalidRequest, ServeError
from sruserve.server.repository.passage import DocumentPreset, Passage
from sruserve.server.repository.passage_reading import check_lists, read_passage, reader_of
from sruserve.server.repository.preset_file import (
    Items,
    PresetEntry,
    PresetFile,
    compute,
    read_presets,
)
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.settings import SettingsError

_WORD_BYTES = 512  # of host memory, at most about: a word, its ids, places, row and dictionaries
_LISTS = ("lemmas", "pos", "ner")


class DocumentEntry(PresetEntry):
    """A document: a text or its words, with the lists that the model needs; or a text alone."""

    words: Items[str] | None = None
    lemmas: Items[str] | None = None
    pos: Items[str] | None = None
    ner: Items[str] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.text is None) is (self.words is None):
            raise ValueError("should have one of 'text' and 'words'")
        return self

    def passage(self, served: ServedModel) -> Passage:
        """Its words; raises `ServeError`."""
        if self.text is not None:
            return read_passage(served, self.text, "text", None)
        return read_passage(served, self.words or [], "words", None)

    def described(self, served: ServedModel, passage: Passage) -> Document:
        """Its words with their lists; raises `InvalidRequest`."""
        reader = reader_of(served)
        lists = {name: getattr(self, name) for name in _LISTS if getattr(self, name) is not None}
        if set(lists) != set(reader.needs):
            needs, has = (", ".join(names) or "no lists" for names in (reader.needs, lists))
            raise InvalidRequest(
                f"{served.name} needs {needs}, and it has {has}: give just these lists"
            )
        check_lists(reader, lists, passage.words, "document", None)
        return Document(reader, passage.ids, passage.words, lists)


_FILE: TypeAdapter[dict[str, DocumentEntry]] = TypeAdapter(PresetFile[DocumentEntry])


def document_presets(served: ServedModel, max_bytes: int) -> Mapping[str, DocumentPreset]:
    """Read the documents in a reader's folder; blocks.

    Each is split into words, and what no question changes is computed. Raises `SettingsError`,
    which names the file and the document.

    max_bytes: the limit of all documents together.
    """
    file, network = served.model.path / PRESETS_FILE, served.model.network
    assert isinstance(network, Reader)
    presets, items, size = {}, [], 0
    for name, entry in read_presets(file, _FILE).items():
        try:
            passage = entry.passage(served)
            words = len(passage.words)
            served.engine.check_steps(words + 1)
            size += words * _WORD_BYTES + network.documents.stored_bytes(words)
            if size > max_bytes:
                raise InvalidRequest(
                    f"the documents up to this one need {size:,} bytes, over the limit of "
                    f"{max_bytes:,} bytes: leave some out"
                )
            described = entry.described(served, passage)
        except ServeError as error:
            raise SettingsError(f"{file}: preset {name!r}: {error}") from None
        # The engine computes a document at its first question.
        rows = described.with_question(np.zeros(1, np.int64), [""], [""])
        stored = network.documents.store(torch.from_numpy(rows[:-1]))
        presets[name] = DocumentPreset(passage, described, stored)
        items.append(SequenceInput(rows, first=words))
    compute(served, items, StateOutput.NONE, file)
    return presets
