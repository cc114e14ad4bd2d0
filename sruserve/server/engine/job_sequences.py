"""Make the sequences of a job, and find where its texts begin in their constraint."""

from collections.abc import Sequence

import numpy as np

from sruserve.model.heads.crf import LinearChain
from sruserve.model.text.codec import Codec
from sruserve.server.engine.constrained.protocols import TextPosition
from sruserve.server.engine.job import Job
from sruserve.server.engine.sequence import EMPTY_SNAPSHOT, NO_IDS, ActiveSequence, Ids


def positions_of(job: Job) -> list[TextPosition]:
    """Return the position of every text of a job in its constraint; empty without a constraint.

    Without a prompt, a text continues at its state's position in the same constraint. Otherwise
    it starts at the beginning. Texts with the same consumed bytes are read once.
    """
    constraint = job.sampling.constraint
    if constraint is None:
        return []
    positions: list[TextPosition] = []
    begun: dict[bytes, TextPosition] = {}
    for item in job.items:
        start = item.start or EMPTY_SNAPSHOT
        continues = start.constraint == constraint.identity and not len(item.inputs)
        consumed = start.consumed if continues else b""
        if consumed in begun:
            positions.append(begun[consumed].copy())
        else:
            positions.append(constraint.begin(consumed))
            begun[consumed] = positions[-1]
    return positions


def sequences_of(
    job: Job,
    codec: Codec | None,
    positions: Sequence[TextPosition] = (),
    crf: LinearChain | None = None,
) -> list[ActiveSequence]:
    """Create a sequence for every item of a job. Choices of one prompt share its tokens."""
    job.unpack()
    if not job.kind.predicts:
        return [
            ActiveSequence(job, index, codec, NO_IDS, crf=crf) for index in range(len(job.items))
        ]
    known: dict[tuple[int, int], Ids] = {}
    sequences = []
    for index, item in enumerate(job.items):
        pending = item.start.pending if item.start else -1
        key = (id(item.inputs), pending)
        if key not in known:
            tokens: Ids = item.inputs.astype(np.int64, copy=False)
            known[key] = np.concatenate(([pending], tokens)) if pending >= 0 else tokens
        position = positions[index] if positions else None
        sequences.append(ActiveSequence(job, index, codec, known[key], position))
    return sequences
