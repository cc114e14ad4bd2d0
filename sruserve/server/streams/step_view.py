"""A model as one step of a stream sees it: every request goes on from the stream's state."""

from dataclasses import replace
from typing import Self

from sruserve.server.engine.job import Job, Result, Snapshot, StateOutput
from sruserve.server.errors import InvalidRequest
from sruserve.server.repository.served_model import ServedModel, StateRequest
from sruserve.server.streams.shared_state import SharedState
from sruserve.server.tasks.completion_request import CompletionRequest


class StreamView(ServedModel):
    """A served model whose requests all continue one stream, and whose end is the stream's.

    `with` it: the end lives as long as the block, and longer if a store uses it.

    start: the stream's state; None: nothing was read yet.
    state_output: how the engine hands the end over.
    seed: what a first completion samples with, unless it is told another; None: a random one.
    tokens: results tell their states as tokens, too; `state_output` is then SNAPSHOT.
    """

    def __init__(
        self,
        served: ServedModel,
        start: Snapshot | None,
        keep: StateOutput,
        *,
        seed: int | None = None,
        tokens: bool = False,
    ) -> None:
        super().__init__(
            served.model,
            served.engine,
            served.sealer,
            served.tenant,
            served.presets,
            served.in_flight,
            served.pool,
            served.states,
        )
        self.start = start
        self._state_output, self._seed, self._tokens = keep, seed, tokens
        self._end: SharedState | None = None

    def initial_states(self, request: StateRequest, count: int) -> list[Snapshot | None]:
        """The stream's state, whatever the request says; raises `InvalidRequest` for many."""
        del request
        _check_one(count)
        return [self.start]

    def state_output(self, request: StateRequest) -> StateOutput:
        """What the stream's keeper wants, however large it is, unless a token is made of it."""
        return super().state_output(request) if self._tokens else self._state_output

    def state_numbers(self, keep: StateOutput) -> int:
        """None, unless a token is made of the state: else it is the keeper's, not the reply's."""
        return super().state_numbers(keep) if self._tokens else 0

    def set_seed(self, request: CompletionRequest) -> None:
        """A request that begins the stream samples with its seed, so that it can be done again."""
        if self.start is None and request.seed is None:
            request.seed = self._seed

    def submit(self, job: Job) -> None:
        """Hand a job of one item to the engine; its end is kept here, if it keeps one."""
        _check_one(len(job.items))
        tell = job.deliver

        def deliver(index: int, result: Result) -> None:
            if result.state is not None:
                if self._end is not None:
                    self._end.leave()
                self._end = SharedState(self, result.state)
                if not self._tokens:
                    result = replace(result, state=None)
            tell(index, result)

        job.deliver = deliver
        super().submit(job)

    @property
    def end(self) -> SharedState:
        """The state that the step ended in."""
        if self._end is None:
            raise InvalidRequest(
                "the step has nothing to compute: send an input, a prompt or `max_tokens`"
            )
        return self._end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._end is not None:
            self._end.leave()
        self._end = None


def _check_one(inputs: int) -> None:
    if inputs != 1:
        raise InvalidRequest(
            f"a stream reads one input at a time, but this step has {inputs}: send one, or use "
            "another stream from the same state"
        )
