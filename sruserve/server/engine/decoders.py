"""The streams that take a token in every step, or in turns where they do not all fit into one."""

from collections.abc import Hashable
from itertools import islice

from sruserve.server.engine.fair_shares import split
from sruserve.server.engine.jobs import Job
from sruserve.server.engine.streams import Stream


class Decoders:
    """Decoding streams. Where they do not fit, tenants get equal parts, then their requests."""

    def __init__(self) -> None:
        self._streams: dict[Stream, None] = {}
        self._tenants: dict[Hashable, dict[Job, dict[Stream, None]]] = {}
        self.counts: dict[Hashable, int] = {}  # streams of each tenant

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, stream: Stream) -> bool:
        return stream in self._streams

    def add(self, stream: Stream) -> None:
        """A stream decodes from now on."""
        job = stream.job
        self._streams[stream] = None
        self._tenants.setdefault(job.tenant, {}).setdefault(job, {})[stream] = None
        self.counts[job.tenant] = self.counts.get(job.tenant, 0) + 1

    def remove(self, stream: Stream) -> None:
        """A stream decodes no more."""
        job = stream.job
        jobs = self._tenants[job.tenant]
        del self._streams[stream], jobs[job][stream]
        if not jobs[job]:
            del jobs[job]
        self.counts[job.tenant] -= 1
        if not self.counts[job.tenant]:
            del self._tenants[job.tenant], self.counts[job.tenant]

    def choose(self, most: int) -> list[Stream]:
        """At most so many streams; the others come first next time."""
        if len(self._streams) <= most:
            return list(self._streams)
        chosen: list[Stream] = []
        tenants = list(islice(self._tenants, most))
        shares = split([self.counts[tenant] for tenant in tenants], most)
        for tenant, share in zip(tenants, shares, strict=True):
            jobs = self._tenants[tenant] = self._tenants.pop(tenant)
            turn = list(islice(jobs, share))
            parts = split([len(jobs[job]) for job in turn], share)
            for job, part in zip(turn, parts, strict=True):
                streams = jobs[job] = jobs.pop(job)
                for stream in list(islice(streams, part)):
                    streams[stream] = streams.pop(stream)
                    chosen.append(stream)
        return chosen
