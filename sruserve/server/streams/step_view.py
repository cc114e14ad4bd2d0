"""A model as seen by one step of a stream: every request continues the stream's state."""

from dataclasses import replace
from typing import Self

from sruserve.server.engine.job import Job
from sruserve.server.engine.results import Result
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.errors import InvalidRequest
from sruserve.server.repository.served_model import ServedModel, StateRequest
from sruserve.server.streams.shared_state import SharedState
from sruserve.server.tasks.completion_request import CompletionRequest


class StreamView(ServedModel):
    """A served model whose requests continue one stream, and which keeps the stream's end state.

    Use it in a `with` block. The end state is released with the block, unless a store retains it.

    start: the stream's state; None: the stream has read no input yet.
    state_output: the form in which the engine returns the end state.
    seed: of a first completion without a seed of its own; None: a random one.
    tokens: results contain state tokens, too; `state_output` is then COPY.
    """

    def __init__(
        self,
        served: ServedModel,
        start: Snapshot | None,
        state_output: StateOutput,
        *,
        seed: int | None = None,
        tokens: bool = False,
    ) -> None:
        self._share(served)
        self.start = start
        self._state_output, self._seed, self._tokens = state_output, seed, tokens
        self._end: SharedState | None = None

    def initial_states(self, request: StateRequest, count: int) -> list[Snapshot | None]:
        """The stream's state, for any request; raises `InvalidRequest` for several inputs."""
        del request
        if count != 1:
            raise _one_only(count)
        return [self.start]

    def state_output(self, request: StateRequest) -> StateOutput:
        """The form that the stream's store needs, unless the reply contains a token.

        A last step stores no state, but its request may still need one, as a forecast does.
        """
        if self._tokens:
            return super().state_output(request)
        if self._state_output is StateOutput.NONE and request.state_wanted_by is not None:
            return StateOutput.COPY
        return self._state_output

    def state_numbers(self, state_output: StateOutput) -> int:
        """The numbers of a state in the reply: 0 unless the reply contains a token of it."""
        return super().state_numbers(state_output) if self._tokens else 0

    def set_seed(self, request: CompletionRequest) -> None:
        """Let the first request sample with the stream's seed: a retry gives the same text."""
        if self.start is None and request.seed is None:
            request.seed = self._seed

    def submit(self, job: Job) -> None:
        """Submit a job of one item to the engine, and keep its end state if it has one."""
        if len(job.items) != 1:
            raise _one_only(len(job.items))
        deliver_result = job.deliver

        def deliver(index: int, result: Result) -> None:
            if result.state is not None:
                if self._end is not None:
                    self._end.release()
                self._end = SharedState(self, result.state)
                if not self._tokens:
                    result = replace(result, state=None)
            deliver_result(index, result)

        job.deliver = deliver
        super().submit(job)

    def end_state(self, result: Result) -> Snapshot:
        del result  # deliveries leave it out
        return self.end.of(self)

    @property
    def end(self) -> SharedState:
        """The end state of the step."""
        if self._end is None:
            raise InvalidRequest(
                "the step has nothing to compute: send an input, a prompt or `max_tokens`"
            )
        return self._end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._end is not None:
            self._end.release()
        self._end = None


def _one_only(inputs: int) -> InvalidRequest:
    return InvalidRequest(
        f"a stream reads one input at a time, but this step has {inputs}: send one, or use "
        "another stream from the same state"
    )
