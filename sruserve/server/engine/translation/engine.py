"""The engine of a translation model: encode, step, select, deliver."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from sruserve.kernels.devices import CPU
from sruserve.model.translation.folder import TranslationModel
from sruserve.server.budget import Budget
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.decoding_parameters import BeamSearch
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.metrics import Metrics
from sruserve.server.engine.scheduling.step_time import StepTime
from sruserve.server.engine.threads import ThreadPolicy
from sruserve.server.engine.translation.beam_memory import BeamMemory
from sruserve.server.engine.translation.beam_runner import BeamRunner
from sruserve.server.engine.translation.beam_shares import BeamShares, main_part
from sruserve.server.engine.translation.needs import Needs
from sruserve.server.engine.translation.sentence import Sentence
from sruserve.server.engine.translation.sentence_queue import SentenceQueue
from sruserve.server.engine.translation.source import SourceInput
from sruserve.server.errors import (
    DeadlineExceeded,
    Draining,
    InvalidRequest,
    ServeError,
    TooManyAtOnce,
    faults,
)

_log = logging.getLogger(__name__)
_ENCODE_SHARE = 8  # while sentences are translated, sources take 1/8 of a step, so none stalls
_MIN_BEAMS = 128  # that every step may have, however slow: in fewer, reading weights takes long
_WAITING = 4  # memories of beams that requests may claim together: one is in use, three wait


class TranslationEngine(JobEngine):
    """Translates all sentences of all jobs together; they arrive and leave between two steps.

    claims: the budget of the memory that admitted requests will need, by owner; each claims it
        before its job is submitted, on the event loop, and releases it when it ends.
    """

    def __init__(
        self,
        model: TranslationModel,
        config: EngineConfig,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(model.name, CPU, config, metrics, clock)
        translator, target = model.translator, model.config.target
        assert target.eos is not None
        self.translator, self._end_id = translator, target.eos
        limit = config.state_pool_bytes
        self.claims = Budget(_WAITING * limit, _too_many, share=_WAITING * limit // 2, yields=True)
        self._memory = BeamMemory(translator, limit)
        self._runner = BeamRunner(translator, target, self._memory, config.max_block_scores)
        self._threads = ThreadPolicy(translator.weights, torch.float32, config.threads)
        self._step_time = StepTime(config.max_batch_tokens, _MIN_BEAMS, first_rows=_MIN_BEAMS)
        self._source_tokens = 0  # that may be encoded now; negative after a long source
        self._queue = SentenceQueue()
        self._live: list[Sentence] = []
        self._open: dict[Job, int] = {}  # sentences of each job that have no result
        self._unbegun: dict[Job, int] = {}  # sentences of each job that have not begun
        self._has_news, self._next_report = False, 0.0

    @property
    def running(self) -> int:
        return len(self._live)

    @property
    def max_source(self) -> int:
        """The most ids of a source: the positions of the model, or what a step may encode."""
        positions, rows = self.translator.max_source, self._config.max_batch_tokens
        return rows if positions is None else min(rows, positions)

    @property
    def state_limits(self) -> dict[str, int]:
        return {"pool": self._memory.capacity}

    def needs(self, search: BeamSearch, sources: Sequence[SourceInput]) -> list[Needs]:
        """What sentences take; raises `InvalidRequest` if one can never begin."""
        capacity = main_part(self._memory.capacity)
        needs = [Needs.of(self.translator, search, source) for source in sources]
        need, source = max(zip(needs, sources, strict=True), key=lambda each: each[0].nbytes)
        if source.before is not None and need.nbytes > capacity:
            raise InvalidRequest(
                f"a source of {source.length} tokens takes {need.nbytes} bytes, over the limit of "
                f"{capacity} bytes: split the text into sentences, or ask the operator to raise "
                "SRUSERVE_STATE_POOL_BYTES",
                param="input",
            )
        if need.nbytes > capacity or search.beam_size > main_part(self._config.max_batch_tokens):
            raise InvalidRequest(
                f"{search.beam_size} beams of {need.max_tokens} tokens take {need.nbytes} bytes, "
                f"over the limit of {capacity} bytes: lower 'beam_size' or 'max_tokens', or ask "
                "the operator to raise SRUSERVE_STATE_POOL_BYTES",
                param="beam_size",
            )
        return needs

    def claim(self, needs: Sequence[Needs]) -> int:
        """The bytes that sentences count for among `claims`; at most all that can be in use."""
        return min(sum(each.nbytes for each in needs), self._memory.capacity)

    def _check(self, job: Job) -> None:
        assert job.kind is JobKind.TRANSLATE

    def _warm_up(self) -> None:
        self._report()

    def _has_jobs(self) -> bool:
        return bool(self._open) or not self._admission_queue.empty

    def _jobs(self) -> Iterable[Job]:
        self._accept(0)  # those that nobody has looked at yet
        return self._open

    def _run_once(self) -> None:
        if self._clock() >= self._deadline:
            self._end_all(Draining("the server stopped before the request was done; retry"))
            return
        self._receive()
        self._end_early()
        if begun := self._next_sentences():
            self._begin(begun)
            self._deliver_done()
            self._dispatcher.flush()  # chunks that let nothing be written wait for no step
        if self._live:
            self._step()
        self._report()

    def _discard(self) -> None:
        """Forget the live sentences: a failure may leave states that fit no hypotheses."""
        for sentence in self._live:
            self._memory.release(sentence.needs, sentence.slots)
        self._live = []
        self._runner.clear()

    def _receive(self) -> None:
        """Queue the sentences of new jobs; waits for one if there is nothing to do."""
        timeout: float | None = 0.0
        if not self._open:
            polls = self._has_news or self._draining
            timeout = self.report_seconds if polls else None
        self._accept(timeout)

    def _accept(self, timeout: float | None) -> None:
        for job in self._admission_queue.receive(timeout):
            if isinstance(job, Job):
                places = range(len(job.items))
                sentences = [Sentence(job, i, self.translator, self._end_id) for i in places]
                self._open[job] = self._unbegun[job] = len(sentences)
                self._queue.add(job, sentences)

    def _end_early(self) -> None:
        """End the jobs whose clients have left, and those that have waited for too long."""
        now, ending = self._clock(), dict[Job, ServeError | None]()
        for job in self._open:
            if job.withdrawn:
                ending[job] = None
            elif job.deadline and not job.begun and now > job.deadline:
                ending[job] = DeadlineExceeded()
        self._end_jobs(ending)

    def _next_sentences(self) -> list[Sentence]:
        """Take the sentences whose turn it is, while there is memory and room in a step."""
        max_rows = self._config.max_batch_tokens
        tokens = max_rows
        if self._live:
            share = max(1, max_rows // _ENCODE_SHARE)
            tokens = min(share, self._source_tokens + share)
        beams, memory = self._step_time.rows, self._memory
        shares = BeamShares(self._live, memory.capacity, beams, max_rows)
        begins = True  # a source longer than its share of a step begins alone, and others wait then

        def admit(sentence: Sentence) -> bool:
            nonlocal tokens, begins
            alone = begins and tokens > 0
            if not (sentence.cost <= tokens or alone) or not shares.admit(sentence):
                return False
            sentence.slots = memory.reserve(sentence.needs)
            tokens -= sentence.cost
            begins = False
            return True

        begun = self._queue.take(admit)
        self._source_tokens = tokens
        return begun

    def _begin(self, begun: list[Sentence]) -> None:
        """Encode the sources of sentences. One that fails ends its job and no others."""
        started, waits = self._clock(), list[float]()
        for sentence in begun:
            job = sentence.job
            if not job.begun:
                job.begun = started
                waits.append(started - job.submitted)
            self._unbegun[job] -= 1
            if not self._unbegun[job]:
                self._admission_queue.mark_consumed(job)
        if waits:
            self._metrics.queued(waits)
        tokens = sum(sentence.cost for sentence in begun)
        self._threads.apply(tokens)
        failed = self._encode(begun)
        for sentence in failed:
            self._memory.release(sentence.needs, sentence.slots)
        self._end_jobs({sentence.job: error for sentence, error in failed.items()})
        self._metrics.step(len(begun), tokens, self._clock() - started)
        self._metrics.consumed(tokens)

    def _encode(self, begun: list[Sentence]) -> dict[Sentence, ServeError]:
        """Encode sources, whose sentences then live; returns those that fail alone."""
        try:
            self._runner.begin(begun)
        except faults() as error:
            if len(begun) == 1:
                return {begun[0]: self._as_serve_error(error)}
        else:
            self._live += begun
            return {}
        middle = len(begun) // 2  # outside the handler: the error holds memory
        return self._encode(begun[:middle]) | self._encode(begun[middle:])

    def _step(self) -> None:
        """Step all hypotheses, then deliver. A sentence that fails ends its job and no others."""
        started = self._clock()
        rows = sum(sentence.search.hypotheses for sentence in self._live)
        self._threads.apply(rows)
        failed = self._runner.step(self._live, self._as_serve_error)
        now = self._clock()
        self._step_time.learn(rows, rows, now - started)
        self._metrics.step(len(self._live), rows, now - started)
        self._end_jobs({sentence.job: error for sentence, error in failed.items()})
        self._deliver_done()
        self._deliver_streamed(now)

    def _deliver_done(self) -> None:
        """Deliver what has ended, or waits for more of its source."""
        done = [sentence.done for sentence in self._live]
        results = {
            sentence: sentence.result(
                self._runner.memory(self._live, place) if sentence.waits else None
            )
            for place, sentence in enumerate(self._live)
            if done[place]
        }
        for sentence in self._leave(done):
            result, job = results[sentence], sentence.job
            self._metrics.generated(len(result.hypotheses[0].tokens) - sentence.earlier, 0)
            self._open[job] -= 1
            last = not self._open[job]
            if last:
                self._forget(job)
            self._dispatcher.add_result(job, sentence.index, result, last=last)

    def _deliver_streamed(self, now: float) -> None:
        """Deliver what is new of translations that are streamed."""
        for sentence in self._live:
            if sentence.job.stream and now - sentence.last_flush >= self._config.flush_ms / 1e3:
                sentence.last_flush = now
                self._dispatcher.add_result(sentence.job, sentence.index, sentence.chunk())

    def _end(self, job: Job, error: ServeError | None) -> None:
        self._end_jobs({job: error})

    def _end_all(self, error: ServeError) -> None:
        self._end_jobs(dict.fromkeys(self._jobs(), error))

    def _end_jobs(self, errors: Mapping[Job, ServeError | None]) -> None:
        """End jobs that are not done, all of them in one pass over the live sentences."""
        if not errors:
            return
        self._leave([sentence.job in errors for sentence in self._live])
        for job, error in errors.items():
            if self._unbegun[job]:
                self._admission_queue.mark_consumed(job)
            self._queue.drop(job)
            self._forget(job)
            self._dispatcher.add_error(job, error)

    def _leave(self, leaving: Sequence[bool]) -> list[Sentence]:
        """Remove live sentences, free all that they have, and return them."""
        left = [each for each, leaves in zip(self._live, leaving, strict=True) if leaves]
        if left:
            kept = [not leaves for leaves in leaving]
            self._runner.keep(self._live, kept)
            self._live = [each for each, stays in zip(self._live, kept, strict=True) if stays]
            for sentence in left:
                self._memory.release(sentence.needs, sentence.slots)
        return left

    def _forget(self, job: Job) -> None:
        del self._open[job], self._unbegun[job]

    def _report(self) -> None:
        now = self._clock()
        self._has_news = now < self._next_report
        if self._has_news:
            return
        self._next_report = now + self.report_seconds
        self._metrics.occupancy(self.waiting, self.running)
        self._metrics.states("pool", len(self._live), self._memory.used)


def _too_many() -> TooManyAtOnce:
    return TooManyAtOnce(
        "the beams of the requests in progress take all memory that may be claimed (limit: "
        f"{_WAITING} times SRUSERVE_STATE_POOL_BYTES, for one API key half of it, and no more than "
        "what others leave); retry later, or lower 'beam_size', 'max_tokens' or the number of texts"
    )
