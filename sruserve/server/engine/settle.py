"""Commit a step: assign the new state rows, deliver results, finish sequences that ended."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from sruserve.kernels.oom import is_out_of_memory, release_cached
from sruserve.server.engine.batch import Batch
from sruserve.server.engine.checkpoints import IntermediateStates
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.graph_decoder import Burst
from sruserve.server.engine.job import Job
from sruserve.server.engine.metrics import Metrics
from sruserve.server.engine.model_runner import ModelRunner
from sruserve.server.engine.output_reader import StepResult
from sruserve.server.engine.pending import FinishQueue, PendingFinish, Stopped
from sruserve.server.engine.result_dispatcher import ResultDispatcher
from sruserve.server.engine.results import LENGTH, Finish
from sruserve.server.engine.scheduling.scheduler import Scheduler
from sruserve.server.engine.sequence import ActiveSequence
from sruserve.server.engine.sequence_results import result_of
from sruserve.server.engine.snapshot import StateOutput
from sruserve.server.engine.state_manager import StateManager, transfer_error
from sruserve.server.errors import ServeError, faults

_MAX_UNREAD = 16  # bursts whose tokens are kept until somebody needs their text
_SLOWEST_FLUSH_SEQUENCES = 64  # running sequences from which on `flush_max_ms` applies

Replay = tuple[StepResult, int]  # a burst, and the number of its tokens that are used


@dataclass(slots=True)
class _ToDo:
    """What is left to do once the sequences of a step have their rows and tokens."""

    stopped: list[Stopped] = field(default_factory=list)
    checkpointed: list[ActiveSequence] = field(default_factory=list)
    failed: dict[Job, BaseException] = field(default_factory=dict)
    generated: int = 0
    characters: int = 0


class Settler:
    """Settles steps. After a failure, step results that are not settled still have their rows."""

    def __init__(
        self,
        config: EngineConfig,
        scheduler: Scheduler,
        runner: ModelRunner,
        states: StateManager,
        finish_queue: FinishQueue,
        intermediate_states: IntermediateStates,
        dispatcher: ResultDispatcher,
        metrics: Metrics,
    ) -> None:
        self._config, self._scheduler, self._runner = config, scheduler, runner
        self._states, self._finish_queue = states, finish_queue
        self._intermediate_states = intermediate_states
        self._dispatcher, self._metrics = dispatcher, metrics
        self._unread_bursts = 0

    def settle(
        self,
        batch: Batch,
        step_results: list[StepResult],
        now: float,
        fail: Callable[[Job, BaseException], None],
    ) -> None:
        """Assign the new state rows, deliver results, and stop the sequences that ended.

        fail: called with a job whose text or state could not be computed, and the error.
        """
        for sequence, count in batch.inputs:
            # If the constraint has not accepted the last token, these inputs run again.
            if not (sequence.needs_constraint and count == sequence.remaining):
                sequence.done += count
        self._scheduler.settle(batch)
        todo = _ToDo()
        others = self._settle_plain(step_results, todo, now)
        self._settle_results(others, todo, now)
        for sequence, _ in batch.inputs:
            if not sequence.remaining and not sequence.samples:
                todo.stopped.append((sequence, sequence.ending or LENGTH))
        self._conclude(todo, now, fail)

    def settle_burst(
        self, burst: Burst, now: Callable[[], float], fail: Callable[[Job, BaseException], None]
    ) -> int:
        """Wait for the oldest burst, and settle it. Returns the tokens that it has computed.

        After a failure, `Burst.rows` and the rows of `Burst.results` are those that are nobody's.
        """
        todo, interval = _ToDo(), self._flush_seconds()
        todo.generated = self._runner.collect(burst)
        at = now()
        free, burst.rows = burst.rows, []
        self._states.replace_rows(free)
        for sequence, is_full, is_sent in self._runner.due(at, interval):
            self._read(sequence, todo, at, is_full, is_sent)
        self._settle_results(burst.results, todo, at)
        self._conclude(todo, at, fail)
        return int(burst.counts.sum())

    def _read(
        self, sequence: ActiveSequence, todo: "_ToDo", now: float, is_full: bool, is_sent: bool
    ) -> None:
        """Turn a plain sequence's tokens into text, and end or send it."""
        try:
            todo.characters += sequence.read()
        except faults() as error:
            todo.failed[sequence.job] = error
            return
        if is_full:
            todo.stopped.append((sequence, LENGTH))
        elif is_sent:
            self._send_text(sequence, now)

    def _settle_results(
        self, step_results: Sequence[StepResult], todo: "_ToDo", now: float
    ) -> None:
        interval = self._flush_seconds()
        failed = todo.failed
        written: list[tuple[StepResult, int, Finish | None]] = []
        replays: list[Replay] = []  # only some tokens are used, and the state is needed
        for step_result in step_results:
            sequence, tokens = step_result.sequence, step_result.tokens
            if isinstance(tokens, np.ndarray):
                step_result.tokens = tokens = tokens.tolist()
            if tokens and sequence.needs_constraint and not sequence.uncommitted:
                # The constraint has not accepted a token yet: the sequence waits.
                row, step_result.row = step_result.row, -1
                self._states.pool.release(row)
                continue
            sequence.outputs.add(step_result.outputs)
            if not tokens:
                self._assign_row(step_result)
                sequence.steps += step_result.consumed
                continue
            try:
                used, ending, new_characters = sequence.write(tokens, step_result.logprobs)
            except faults() as error:
                self._fail_result(step_result, error, failed)
                continue
            written.append((step_result, used, ending))
            todo.characters += new_characters
            if used < len(tokens) and (
                ending is None or sequence.job.state_output is not StateOutput.NONE
            ):
                replays.append((step_result, used))
        for part in self._passes(replays):
            self._replay(part, failed)
        for step_result, used, ending in written:
            if step_result.row < 0:  # its replay failed
                continue
            sequence = step_result.sequence
            todo.generated += used
            self._assign_row(step_result)
            sequence.steps += step_result.consumed + used - 1
            sequence.pending = int(step_result.tokens[used - 1])
            if ending is not None:
                todo.stopped.append((sequence, ending))
                continue
            self._scheduler.decode(sequence)
            if sequence.checkpoint_pending:  # later text is delivered after that state
                continue
            if sequence.checkpoint_due:
                todo.checkpointed.append(sequence)
            elif sequence.job.stream and now - sequence.last_flush >= interval:
                self._send_text(sequence, now)

    def _settle_plain(
        self, step_results: Sequence[StepResult], todo: "_ToDo", now: float
    ) -> list[StepResult]:
        """Settle the step results of plain sequences that were decoding; returns the others."""
        interval = self._flush_seconds()
        self._unread_bursts = (self._unread_bursts + 1) % _MAX_UNREAD
        is_read = not self._unread_bursts
        others: list[StepResult] = []
        free: list[int] = []
        try:
            for step_result in step_results:
                sequence, tokens = step_result.sequence, step_result.tokens
                if not isinstance(tokens, np.ndarray) or not sequence.admitted:
                    others.append(step_result)
                    continue
                free.append(sequence.row)
                sequence.row, step_result.row = step_result.row, -1
                todo.generated += len(tokens)
                sequence.extend(tokens)
                is_full = sequence.generated >= sequence.max_tokens
                is_sent = sequence.streams and now - sequence.last_flush >= interval
                if is_full or is_sent or is_read:
                    self._read(sequence, todo, now, is_full, is_sent)
        finally:
            if free:
                self._states.replace_rows(free)
        return others

    def _conclude(
        self, todo: "_ToDo", now: float, fail: Callable[[Job, BaseException], None]
    ) -> None:
        """Fail jobs, stop sequences, begin checkpoints, and count the text."""
        failed = todo.failed
        for job, problem in failed.items():
            fail(job, problem)
        self._stop([entry for entry in todo.stopped if entry[0].job not in failed])
        self._intermediate_states.begin(
            [sequence for sequence in todo.checkpointed if sequence.job not in failed],
            now,
            self._states.spare_rows(self._scheduler.admitted),
        )
        if todo.generated:
            self._metrics.generated(todo.generated, todo.characters)

    def _send_text(self, sequence: ActiveSequence, now: float) -> None:
        self._dispatcher.add_result(sequence.job, sequence.index, sequence.take_text(now))

    def stop(self, job: Job, ending: Finish) -> None:
        """End a job's completions where they are; their last results are delivered as usual."""
        sequences = self._scheduler.decoding(job)
        for sequence in sequences:
            self._runner.leave(sequence)
        self._stop([(sequence, ending) for sequence in sequences])

    def _stop(self, stopped: Sequence[Stopped]) -> None:
        for sequence, _ in stopped:
            self._scheduler.retire(sequence)
        self._finish_queue.begin(stopped)

    def _passes(self, replays: Sequence[Replay]) -> Iterator[Sequence[Replay]]:
        """Split replays into as few passes as the bound on the rows of a step allows."""
        first = rows = 0
        for i, (_, count) in enumerate(replays):
            if rows and rows + count > self._config.max_batch_tokens:
                yield replays[first:i]
                first, rows = i, 0
            rows += count
        if rows:
            yield replays[first:]

    def _replay(self, replays: Sequence[Replay], failed: dict[Job, BaseException]) -> None:
        """Replay in one pass, or in halves if the device has no memory for that."""
        try:
            self._runner.replay(replays)
        except faults() as error:
            if len(replays) == 1 or not is_out_of_memory(error):
                for step_result, _ in replays:
                    self._fail_result(step_result, error, failed)
                return
        else:
            for _ in replays:
                self._metrics.replayed()
            return
        # Outside the handler: the error holds memory that the next try may need.
        release_cached(self._states.pool.rows.device)
        cut = len(replays) // 2
        self._replay(replays[:cut], failed)
        self._replay(replays[cut:], failed)

    def _fail_result(
        self, step_result: StepResult, error: BaseException, failed: dict[Job, BaseException]
    ) -> None:
        failed[step_result.sequence.job] = error
        row, step_result.row = step_result.row, -1
        self._states.pool.release(row)

    def deliver_finished(self, fail: Callable[[Job, ServeError], None]) -> None:
        """Deliver the intermediate states and last results whose transfers have ended.

        fail: called with a job whose last result could not be delivered, and the error.
        """
        for sequence, piece in self._intermediate_states.completed():
            self._dispatcher.add_result(sequence.job, sequence.index, piece)
        for pending in self._finish_queue.completed():
            try:
                self._deliver(pending)
            except faults() as error:
                self._finish_queue.undo(pending)
                fail(pending.sequence.job, transfer_error(error))

    def _deliver(self, pending: PendingFinish) -> None:
        if pending.error is not None:
            raise pending.error
        sequence = pending.sequence
        result = result_of(sequence, pending.row, pending.finish)
        self._states.free(sequence)
        last = self._scheduler.finish(sequence)
        self._dispatcher.add_result(sequence.job, sequence.index, result, last=last)

    def _assign_row(self, step_result: StepResult) -> None:
        row, step_result.row = step_result.row, -1
        self._states.advance(step_result.sequence, row)

    def _flush_seconds(self) -> float:
        """Seconds between deliveries of a sequence's text: an HTTP event costs more than a step.

        Grows linearly from `flush_ms` to `flush_max_ms` with the number of running sequences.
        """
        config, load = self._config, min(1.0, self._scheduler.running / _SLOWEST_FLUSH_SEQUENCES)
        return (config.flush_ms + (config.flush_max_ms - config.flush_ms) * load) / 1e3
