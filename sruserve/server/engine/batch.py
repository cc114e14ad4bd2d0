"""The work of one step: the sequences that take part, and the number of inputs of each."""

from collections.abc import Iterator
from dataclasses import dataclass

from sruserve.server.engine.sequence import ActiveSequence


@dataclass(slots=True)
class Batch:
    """One step: a token for each decoding sequence, then runs of inputs (sequence, count)."""

    decodes: list[ActiveSequence]
    inputs: list[tuple[ActiveSequence, int]]

    def __len__(self) -> int:
        return len(self.decodes) + len(self.inputs)

    @property
    def sequences(self) -> list[ActiveSequence]:
        return [*self.decodes, *(sequence for sequence, _ in self.inputs)]

    @property
    def computed(self) -> "Batch":
        """The batch without the sequences that have no inputs to consume."""
        return Batch(self.decodes, [(s, n) for s, n in self.inputs if n])

    def without_ended(self) -> "Batch":
        """The batch without the sequences that have ended since it was chosen."""
        return Batch(
            [sequence for sequence in self.decodes if sequence.decodes],
            [(sequence, count) for sequence, count in self.inputs if not sequence.dropped],
        )

    def halves(self) -> Iterator["Batch"]:
        """Yield two batches of half as many sequences each.

        A sequence that is dropped before its half is yielded is left out.
        """
        cut = len(self) // 2
        inputs = max(0, cut - len(self.decodes))
        for half in (
            Batch(self.decodes[:cut], self.inputs[:inputs]),
            Batch(self.decodes[cut:], self.inputs[inputs:]),
        ):
            yield Batch(
                [sequence for sequence in half.decodes if not sequence.dropped],
                [(sequence, count) for sequence, count in half.inputs if not sequence.dropped],
            )
