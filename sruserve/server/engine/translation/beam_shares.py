"""Which sentences may begin: the long searches of one tenant keep no other tenant out."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Self

from sruserve.server.engine.translation.sentence import Sentence

_RESERVE = 8  # 1/8 of the memory, and of the beams of a step, is for tenants that use little


def main_part(limit: int) -> int:
    """The part of a limit that one tenant may use."""
    return limit - limit // _RESERVE


@dataclass(frozen=True, slots=True)
class _Use:
    """Memory in bytes, and beams of a step."""

    nbytes: int = 0
    beams: int = 0

    def plus(self, sentence: Sentence) -> Self:
        beams = self.beams + sentence.beam_size
        return type(self)(self.nbytes + sentence.needs.nbytes, beams)

    def fits(self, limit: Self) -> bool:
        return self.nbytes <= limit.nbytes and self.beams <= limit.beams


class BeamShares:
    """Counts what live sentences use, to let others begin.

    In the main part, sentences begin in their turns: once one does not fit, all wait for it. That
    may take as long as the searches that are running, so a tenant that has no sentence begins one
    in the reserve, if it leaves at least as much of the reserve to others as it takes.

    live: the sentences that have begun. memory_bytes: of all beams. beams: of the sentences of the
    main part, by the time of a step. max_beams: of all sentences, by the size of a step.
    """

    def __init__(
        self, live: Iterable[Sentence], memory_bytes: int, beams: int, max_beams: int
    ) -> None:
        self._main_limit = _Use(main_part(memory_bytes), min(beams, main_part(max_beams)))
        self._reserve_limit = _Use(memory_bytes // _RESERVE, max_beams // _RESERVE)
        self._main = self._reserve = _Use()
        self._tenants: set[Hashable] = set()
        self._waits = False  # a sentence keeps its turn in the main part
        for sentence in live:
            self._add(sentence)

    def admit(self, sentence: Sentence) -> bool:
        """Count a sentence if it may begin. Ask in the order of turns."""
        self._waits = self._waits or not self._main.plus(sentence).fits(self._main_limit)
        sentence.in_reserve = self._waits
        if self._waits:
            twice = self._reserve.plus(sentence).plus(sentence)
            if sentence.job.tenant in self._tenants or not twice.fits(self._reserve_limit):
                return False
        self._add(sentence)
        return True

    def _add(self, sentence: Sentence) -> None:
        self._tenants.add(sentence.job.tenant)
        if sentence.in_reserve:
            self._reserve = self._reserve.plus(sentence)
        else:
            self._main = self._main.plus(sentence)
