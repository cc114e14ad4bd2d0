"""Which sentences may begin: the long searches of one tenant keep no other tenant out."""

from collections import defaultdict
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

    def minus(self, other: Self) -> Self:
        return type(self)(self.nbytes - other.nbytes, self.beams - other.beams)

    def fits(self, limit: Self) -> bool:
        return self.nbytes <= limit.nbytes and self.beams <= limit.beams


class BeamShares:
    """Counts what live sentences use, to let others begin.

    In the main part, sentences begin in their turns: once one does not fit, all wait for it. That
    may take as long as the searches that are running, so a tenant that has no sentence there begins
    some in the reserve, where each leaves at least as much free as its tenant has.

    live: the sentences that have begun. memory_bytes: of all beams. beams: of the main part in a
    step, by its time; the reserve may have twice as many. max_beams: of a step, by its size.
    """

    def __init__(
        self, live: Iterable[Sentence], memory_bytes: int, beams: int, max_beams: int
    ) -> None:
        self._main_limit = _Use(main_part(memory_bytes), min(beams, main_part(max_beams)))
        spare = min(2 * beams, max_beams // _RESERVE)  # one tenant may have half
        self._reserve_limit = _Use(memory_bytes // _RESERVE, spare)
        self._main = self._reserve = _Use()
        self._main_tenants: set[Hashable] = set()
        self._of_tenant: defaultdict[Hashable, _Use] = defaultdict(_Use)  # in the reserve
        self._waits = False  # a sentence keeps its turn in the main part
        for sentence in live:
            self._add(sentence)

    def admit(self, sentence: Sentence) -> bool:
        """Count a sentence if it may begin. Ask in the order of turns."""
        self._waits = self._waits or not self._main.plus(sentence).fits(self._main_limit)
        sentence.in_reserve = self._waits
        if self._waits:
            own = self._of_tenant[sentence.job.tenant].plus(sentence)
            free = self._reserve_limit.minus(self._reserve.plus(sentence))
            if sentence.job.tenant in self._main_tenants or not own.fits(free):
                return False
        self._add(sentence)
        return True

    def _add(self, sentence: Sentence) -> None:
        tenant = sentence.job.tenant
        if sentence.in_reserve:
            self._reserve = self._reserve.plus(sentence)
            self._of_tenant[tenant] = self._of_tenant[tenant].plus(sentence)
        else:
            self._main = self._main.plus(sentence)
            self._main_tenants.add(tenant)
