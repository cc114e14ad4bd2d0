"""Decoding sequences take a token in every step, or take turns if one step cannot hold them all."""

from collections.abc import Hashable
from itertools import islice

from sruserve.server.engine.job import Job
from sruserve.server.engine.scheduling.fair_shares import split
from sruserve.server.engine.sequence import ActiveSequence


class DecodeTurns:
    """Decoding sequences. If not all fit, tenants get equal shares, then each tenant's jobs do."""

    def __init__(self) -> None:
        self._sequences: dict[ActiveSequence, None] = {}
        self._tenants: dict[Hashable, dict[Job, dict[ActiveSequence, None]]] = {}
        self.counts: dict[Hashable, int] = {}  # sequences of each tenant

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, sequence: ActiveSequence) -> bool:
        return sequence in self._sequences

    def add(self, sequence: ActiveSequence) -> None:
        """Add a sequence that decodes from now on."""
        job = sequence.job
        self._sequences[sequence] = None
        self._tenants.setdefault(job.tenant, {}).setdefault(job, {})[sequence] = None
        self.counts[job.tenant] = self.counts.get(job.tenant, 0) + 1

    def remove(self, sequence: ActiveSequence) -> None:
        """Remove a sequence that no longer decodes."""
        job = sequence.job
        jobs = self._tenants[job.tenant]
        del self._sequences[sequence], jobs[job][sequence]
        if not jobs[job]:
            del jobs[job]
        self.counts[job.tenant] -= 1
        if not self.counts[job.tenant]:
            del self._tenants[job.tenant], self.counts[job.tenant]

    def choose(self, max_sequences: int) -> list[ActiveSequence]:
        """Choose at most `max_sequences`; the sequences left out are first in the next call."""
        if len(self._sequences) <= max_sequences:
            return list(self._sequences)
        chosen: list[ActiveSequence] = []
        tenants = list(islice(self._tenants, max_sequences))
        shares = split([self.counts[tenant] for tenant in tenants], max_sequences)
        for tenant, share in zip(tenants, shares, strict=True):
            jobs = self._tenants[tenant] = self._tenants.pop(tenant)
            chosen_jobs = list(islice(jobs, share))
            parts = split([len(jobs[job]) for job in chosen_jobs], share)
            for job, part in zip(chosen_jobs, parts, strict=True):
                sequences = jobs[job] = jobs.pop(job)
                for sequence in list(islice(sequences, part)):
                    sequences[sequence] = sequences.pop(sequence)
                    chosen.append(sequence)
        return chosen
