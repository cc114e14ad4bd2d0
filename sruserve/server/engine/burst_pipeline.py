"""Bursts on a GPU: each is launched before the last one is settled, so no device waits for it."""

from collections.abc import Callable, Sequence

from sruserve.server.engine.graph_decoder import Burst
from sruserve.server.engine.job import Job
from sruserve.server.engine.metrics import Metrics
from sruserve.server.engine.model_runner import ModelRunner
from sruserve.server.engine.scheduling.scheduler import Scheduler
from sruserve.server.engine.sequence import ActiveSequence
from sruserve.server.engine.settle import Settler
from sruserve.server.engine.state_manager import StateManager

Fail = Callable[[Job, BaseException], None]


class BurstPipeline:
    """The bursts of one engine. Between two scheduling steps, at most one is running.

    A burst reads the rows that the one before it writes, and writes rows of its own. So if a
    sequence turns out to have ended in the first one, its row is still there: the tokens of the
    second are dropped.

    running: the bursts that were launched and are not settled, oldest first.
    has_slots: whether sequences may have slots.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        settler: Settler,
        states: StateManager,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler, self._runner, self._settler = scheduler, runner, settler
        self._states, self._metrics, self._clock = states, metrics, clock
        self.running: list[Burst] = []
        self.has_slots = False
        self._settling: Burst | None = None
        self._settled_at = 0.0

    def can_follow(self, sequences: Sequence[ActiveSequence]) -> bool:
        """Whether a burst of these can be launched while another one runs.

        Otherwise the other one must be settled first: other sequences need its slots, or the rows
        do not suffice for two bursts.
        """
        spare = self._states.spare_rows(self._scheduler.admitted)
        return len(sequences) <= spare and self._runner.follows(sequences)

    def launch(self, sequences: Sequence[ActiveSequence], steps: int, alone: bool = True) -> bool:
        """Launch a burst of these sequences; returns whether any has tokens left for it.

        alone: no other step is launched with it.
        """
        self.has_slots = True
        burst = self._runner.launch(sequences, steps, self._clock(), alone)
        if burst is not None:
            self._states.launched_rows += len(burst.rows)
            self.running.append(burst)
        return burst is not None

    def settle(self, fail: Fail, leave_running: int = 0) -> None:
        """Settle the running bursts, oldest first, except the `leave_running` newest.

        fail: called with a job whose text or state could not be computed, and the error.
        """
        while len(self.running) > leave_running:
            burst = self._settling = self.running.pop(0)
            self._states.launched_rows -= len(burst.sequences)
            tokens = self._settler.settle_burst(burst, self._clock, fail)
            self._settling = None
            now = self._clock()
            seconds = now - max(burst.begun, self._settled_at)
            self._settled_at = now
            count = len(burst.sequences)
            self._metrics.step(count, tokens, seconds)
            if burst.alone:
                self._scheduler.record_step(0, count, tokens, seconds)

    def forget(self) -> None:
        """Take the slots from all sequences, which otherwise stay in memory. No burst may run."""
        self._runner.forget()
        self.has_slots = False

    def discard(self) -> list[Job]:
        """Forget the running bursts after a failure; returns the jobs that took part in them."""
        running, self.running = self.running, []
        self.forget()
        self._states.launched_rows -= sum(len(burst.sequences) for burst in running)
        if self._settling is not None:
            running.append(self._settling)
            self._settling = None
        jobs: dict[Job, None] = {}
        for burst in running:
            left = [result.row for result in burst.results if result.row >= 0]
            self._states.replace_rows([*burst.rows, *left])
            jobs |= dict.fromkeys(sequence.job for sequence in burst.sequences)
        return list(jobs)
