"""A model as one step of a stream sees it: every request goes on from the stream's state."""

from dataclasses import replace

from sruserve.server.api.completion_request import CompletionRequest
from sruserve.server.api.requests import Request
from sruserve.server.api.served import Served
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.jobs import Job, Keep, Result, Snapshot
from sruserve.server.engine.residents import Resident
from sruserve.server.errors import InvalidRequest


class StreamView(Served):
    """A served model whose requests all continue one stream, and whose end is the stream's.

    start: the stream's state; None: nothing was read yet.
    keep: how the engine hands the end over.
    seed: what a first completion samples with, unless it is told another; None: a random one.
    tokens: results tell their states as tokens, too; `keep` is then SNAPSHOT.
    """

    def __init__(
        self,
        served: Served,
        start: Snapshot | None,
        keep: Keep,
        *,
        seed: int | None = None,
        tokens: bool = False,
    ) -> None:
        vars(self).update(vars(served))  # the same model, engine and tenant, whatever they are
        self.start = start
        self._keep, self._seed, self._tokens = keep, seed, tokens
        self._end: Snapshot | None = None

    def starts(self, request: Request, count: int) -> list[Snapshot | None]:
        """The stream's state, whatever the request says; raises `InvalidRequest` for many."""
        del request
        _check_one(count)
        return [self.start]

    def keep(self, request: Request) -> Keep:
        """What the stream's keeper wants, however large it is, unless a token is made of it."""
        return super().keep(request) if self._tokens else self._keep

    def state_numbers(self, keep: Keep) -> int:
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
                self._end = result.state
                if not self._tokens:
                    result = replace(result, state=None)
            tell(index, result)

        job.deliver = deliver
        super().submit(job)

    def take_end(self) -> Snapshot:
        """The state that the step ended in, which is the caller's from now on."""
        end, self._end = self._end, None
        if end is None:
            raise InvalidRequest("this asks nothing of the model, so it is no step of a stream")
        return end

    def drop(self) -> None:
        """Forget the end: nobody will go on from it."""
        if self._end is not None:
            forget(self.engine, self._end)
        self._end = None


def _check_one(inputs: int) -> None:
    if inputs != 1:
        raise InvalidRequest(
            f"a stream reads one input at a time, and this asks for {inputs}: send one, or go on "
            "with another stream from the same state"
        )


def forget(engine: Engine, state: Snapshot) -> None:
    """Let an engine free what it keeps of a state, if it does."""
    if isinstance(state.row, Resident):
        engine.drop(state.row)
