"""A model as one step of a stream sees it: every request goes on from the stream's state."""

from dataclasses import replace

from sruserve.server.api.requests import Request
from sruserve.server.api.served import Served
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.jobs import Job, Keep, Result, Snapshot
from sruserve.server.engine.residents import Resident
from sruserve.server.errors import InvalidRequest


class StreamView(Served):
    """A served model whose requests all continue one stream, and whose end is the stream's.

    start: the stream's state; None: nothing was read yet.
    seed: what a first completion samples with, unless it is told another.
    """

    def __init__(self, served: Served, start: Snapshot | None, seed: int, keep: Keep) -> None:
        vars(self).update(vars(served))  # the same model, engine and tenant, whatever they are
        self.start, self.seed = start, seed
        self._end: Snapshot | None = None
        self._keep = keep

    def starts(self, request: Request, count: int) -> list[Snapshot | None]:
        """The stream's state, whatever the request says."""
        del request
        return [self.start] * count

    def keep(self, request: Request) -> Keep:
        """What the store wants, however large it is: no token is made of it."""
        del request
        return self._keep

    def submit(self, job: Job) -> None:
        """Hand a job of one item to the engine; its end is kept here, and not told."""
        if len(job.items) != 1:
            raise InvalidRequest(
                f"a step of a stream takes one input, and this one asks for {len(job.items)}: send "
                "one, or fork the stream"
            )
        tell = job.deliver

        def deliver(index: int, result: Result) -> None:
            if result.state is not None:
                self.drop()
                self._end = result.state
                result = replace(result, state=None)
            tell(index, result)

        job.keep, job.deliver = self._keep, deliver
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


def forget(engine: Engine, state: Snapshot) -> None:
    """Let an engine free what it keeps of a state, if it does."""
    if isinstance(state.row, Resident):
        engine.drop(state.row)
