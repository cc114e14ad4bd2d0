"""What a reader computes of a document alone, for any question."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """The part of a document's computation that no question changes.

    rows: (words, width): the outputs of the document's encoder if it reads nothing that depends on
        the question, else the embeddings of the words.
    keys: (words, embedding width): what alignment compares; None without alignment.
    """

    rows: Tensor
    keys: Tensor | None

    def copy(self) -> "EncodedDocument":
        """The same in memory of its own: the rows of a step share theirs."""
        return EncodedDocument(self.rows.clone(), None if self.keys is None else self.keys.clone())


class StoredDocument:
    """A place for an encoded document, which the first step that reads the document fills."""

    encoded: EncodedDocument | None = None
