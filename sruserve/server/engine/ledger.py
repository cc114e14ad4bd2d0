"""What bursts have added to the texts in slots, by columns, until each text takes it over."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sruserve.server.engine.sequence import ActiveSequence

Column = NDArray[np.int64]
Mask = NDArray[np.bool_]

Due = tuple[ActiveSequence, bool, bool]
"""A text, whether it is full, and whether it is sent."""

_BURSTS = 16  # whose tokens are kept at most


class Ledger:
    """The rows and tokens of plain texts, one line for each slot.

    A burst is entered for all of them at once. What a line has is missing in its sequence until
    the sequence takes it over, which it must before anybody else looks at its row or its tokens.

    max_steps: of a burst.
    has_line: (slots), whether a slot has a line: its text is plain, and decodes.
    """

    def __init__(self, max_steps: int) -> None:
        self._max_steps = max_steps
        self._sequences: list[ActiveSequence] = []
        self._tokens = np.empty((0, _BURSTS * max_steps), np.int32)
        self._count, self._row = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._streams, self._sent_at = np.zeros(0, np.bool_), np.zeros(0)
        self.has_line: Mask = np.zeros(0, np.bool_)

    def admit(self, sequences: Sequence[ActiveSequence]) -> None:
        """Open lines for sequences, in the order of their slots. Nobody may have a line."""
        slots = len(sequences)
        if len(self._tokens) < slots:  # kept, so that its pages are touched once
            self._tokens = np.empty((slots, self._tokens.shape[1]), np.int32)
        self._sequences = list(sequences)
        self._count = np.zeros(slots, np.int64)
        self._row = np.array([sequence.row for sequence in sequences], np.int64)
        self._streams = np.array([sequence.streams for sequence in sequences], np.bool_)
        self._sent_at = np.array([sequence.last_flush for sequence in sequences])
        self.has_line = np.array([sequence.plain for sequence in sequences], np.bool_)

    def enter(self, slots: Column, counts: Column, rows: Column, tokens: Column) -> list[int]:
        """Enter a burst's row and tokens, (steps, slots), of different slots that have lines.

        Returns the rows that they no longer need. Of its tokens a slot takes the first `counts`.
        """
        replaced: list[int] = self._row[slots].tolist()
        begins = self._count[slots]
        for begin in np.unique(begins).tolist():
            at = slice(begin, begin + len(tokens))
            alike = slots[begins == begin]
            if len(alike) == tokens.shape[1]:
                self._tokens[: len(alike), at] = tokens.T
            else:
                self._tokens[alike, at] = tokens[:, alike].T
        self._row[slots] = rows
        self._count[slots] = begins + counts
        return replaced

    def due(self, full: Mask, now: float, interval: float) -> list[Due]:
        """The texts that are read now take over their lines; those that are full lose them.

        full: (slots), as many tokens as may be sampled. A streamed text that has new tokens is sent
        `interval` seconds after it was sent last. If a line has no room for another burst, all are
        read.
        """
        full = self.has_line & full
        is_late = now - self._sent_at >= interval
        sent = self.has_line & self._streams & is_late & (self._count > 0)
        self._sent_at[sent] = now
        room = self._tokens.shape[1] - self._max_steps
        has_room = self._count.max(initial=0, where=self.has_line) <= room
        due = np.flatnonzero(full | sent if has_room else self.has_line)
        texts = self._take_over(due)
        self.has_line &= ~full
        full_texts: list[bool] = full[due].tolist()
        return list(zip(texts, full_texts, sent[due].tolist(), strict=True))

    def close(self, slot: int) -> None:
        """End a line, if the slot has one; its text takes it over."""
        if self.has_line[slot]:
            self._take_over(np.array([slot]))
            self.has_line[slot] = False

    def close_all(self) -> None:
        """End all lines."""
        self._take_over(np.flatnonzero(self.has_line))
        self.has_line[:] = False

    def _take_over(self, slots: Column) -> list[ActiveSequence]:
        texts, tokens = [self._sequences[slot] for slot in slots.tolist()], self._tokens
        rows, counts = self._row[slots].tolist(), self._count[slots].tolist()
        for sequence, slot, row, count in zip(texts, slots.tolist(), rows, counts, strict=True):
            sequence.row = row
            if count:
                sequence.extend(tokens[slot, :count])
        self._count[slots] = 0
        return texts
