"""What is observed of one request, from its arrival to the end of its reply."""

import time
from asyncio import Future
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Generated
from sruserve.server.observation.traceparent import TraceParent


class Description(NamedTuple):
    """What a protocol says about a request. Nothing in it is a text that the client has chosen.

    request_id: of the server, or the client's if it is a UUID.
    method: of HTTP; None: another protocol.
    status: of the reply: HTTP's, or the name of gRPC's code; None: no reply was begun.
    """

    protocol: str
    request_id: str
    method: str | None = None
    status: int | str | None = None
    parent: TraceParent | None = None


class FollowedJob:
    """A job of the request. Times are on `time.monotonic()`; 0: it did not happen."""

    __slots__ = ("begun", "ended", "job", "submitted")

    def __init__(self, job: Job) -> None:
        self.job: Job | None = job
        self.submitted, self.begun, self.ended = job.submitted, 0.0, 0.0

    def end(self, done: "Future[None]") -> None:
        """Record the end of the job, unless the request has ended before."""
        del done
        if self.job is not None:
            self.ended = time.monotonic()

    def close(self, now: float) -> None:
        """Forget the job, which refers to its inputs."""
        assert self.job is not None
        self.begun, self.ended, self.job = self.job.begun, self.ended or now, None


class Observation:
    """One request. A task lets it follow the jobs; `end` hands it over, once.

    route: the template of its path, or the name of its method.
    outcome, reason: as in the metrics.
    arrival: of the request, on `time.perf_counter()`.
    ended_ns: the end of the request since the epoch. begin, ended: on `time.monotonic()`.
    input_tokens, output_tokens, characters: read and generated; steps of features count as tokens.
    first, last: when the client could have the first and last tokens of a streamed completion, on
        `time.monotonic()`; 0: no token, or no stream.
    trace_id: of its span, or of its client's; 0: it belongs to no trace.
    """

    __slots__ = (
        "begin", "characters", "described", "ended", "ended_ns", "finish_reasons", "first",
        "hand_over", "input_tokens", "jobs", "kind", "last", "model", "outcome", "output_tokens",
        "reason", "route", "trace_id",
    )  # fmt: skip

    described: Description
    outcome: str
    reason: str | None
    model: str
    ended_ns: int

    def __init__(
        self, route: str, arrival: float, hand_over: Callable[["Observation"], object]
    ) -> None:
        self.route, self.hand_over = route, hand_over
        self.begin, self.ended = time.monotonic() - (time.perf_counter() - arrival), 0.0
        self.jobs: list[FollowedJob] = []
        self.kind: JobKind | None = None
        self.input_tokens = self.output_tokens = self.characters = 0
        self.first = self.last = 0.0
        self.finish_reasons: list[str] = []
        self.trace_id = 0

    @property
    def seconds(self) -> float:
        """From the arrival of the request to the end of its reply."""
        return self.ended - self.begin

    @property
    def queue_seconds(self) -> float | None:
        """The wait for the first step; None if there was no step."""
        for job in self.jobs:
            if job.begun:
                return job.begun - job.submitted
        return None

    def follow(self, job: Job, input_tokens: int | None = None) -> None:
        """Observe a job that was just submitted.

        input_tokens: what it reads, if its inputs share some; None: all of its inputs.
        """
        if self.ended:  # the step of a stream whose client has left
            return
        followed = FollowedJob(job)
        self.jobs.append(followed)
        job.done.add_done_callback(followed.end)
        self.input_tokens += job.inputs if input_tokens is None else input_tokens
        self.kind = job.kind
        if job.kind.samples:
            job.deliver = partial(self._deliver, job.deliver, job.stream)

    def extend_steps(self) -> None:
        """Record that the steps of the last job lasted until now, in jobs that nobody follows."""
        if self.jobs and not self.ended:
            self.jobs[-1].ended = time.monotonic()

    def _deliver(
        self, deliver: Callable[[int, Any], None], streams: bool, index: int, chunk: Generated
    ) -> None:
        """Observe a chunk of a completion while it is delivered."""
        if streams and chunk.tokens:
            self.last = time.monotonic()
            self.first = self.first or self.last
        self.output_tokens += len(chunk.tokens)
        self.characters += len(chunk.text)
        if chunk.finish_reason is not None:
            self.finish_reasons.append(chunk.finish_reason)
        deliver(index, chunk)

    def end(self, described: Description, model: str, outcome: str, reason: str | None) -> None:
        """Complete the observation, and hand it over."""
        self.ended, self.ended_ns = time.monotonic(), time.time_ns()
        self.described, self.model = described, model
        self.outcome, self.reason = outcome, reason
        if described.parent is not None:
            self.trace_id = described.parent.trace_id
        for job in self.jobs:
            job.close(self.ended)
        self.hand_over(self)
