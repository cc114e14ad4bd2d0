"""One step's work: which streams take part, and with how many of their inputs."""

from collections.abc import Iterator
from dataclasses import dataclass

from sruserve.server.engine.streams import Stream


@dataclass(slots=True)
class Batch:
    """One step: a token for each decoding stream, then runs of inputs (stream, count)."""

    decodes: list[Stream]
    inputs: list[tuple[Stream, int]]

    def __len__(self) -> int:
        return len(self.decodes) + len(self.inputs)

    @property
    def streams(self) -> list[Stream]:
        return [*self.decodes, *(stream for stream, _ in self.inputs)]

    @property
    def computed(self) -> "Batch":
        """Without the streams that have nothing to consume."""
        return Batch(self.decodes, [(s, n) for s, n in self.inputs if n])

    def halves(self) -> Iterator["Batch"]:
        """Two batches of half as many streams; who is dropped before its half comes is left out."""
        cut = len(self) // 2
        inputs = max(0, cut - len(self.decodes))
        for part in (
            Batch(self.decodes[:cut], self.inputs[:inputs]),
            Batch(self.decodes[cut:], self.inputs[inputs:]),
        ):
            yield Batch(
                [stream for stream in part.decodes if not stream.dropped],
                [(stream, count) for stream, count in part.inputs if not stream.dropped],
            )
