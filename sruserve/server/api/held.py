"""A model as one stream sees it: its state is kept here, and does not travel with requests."""

from sruserve.server.api.requests import Request
from sruserve.server.api.served import Served
from sruserve.server.engine.jobs import Keep, Snapshot
from sruserve.server.errors import InvalidRequest


class Held(Served):
    """What one step of a stream is computed with: routes read its state and leave its end here.

    start: what the stream goes on from; None: from nothing.
    end: what it has come to; `start` until a result is told.
    tokens: results tell the state as a token, too.
    """

    def __init__(self, served: Served, start: Snapshot | None, *, tokens: bool = False) -> None:
        vars(self).update(vars(served))  # all but the states is the model's and the tenant's
        self.start = self.end = start
        self.tokens = tokens

    def keep(self, request: Request) -> Keep:
        if self.tokens:
            return super().keep(request)
        self.check_streams("state")
        return Keep.SNAPSHOT

    def starts(self, request: Request, count: int) -> list[Snapshot | None]:
        if request.begun_by is not None:
            raise InvalidRequest(
                f"the stream goes on from its own state: leave out '{request.begun_by}', or begin "
                "another stream with it",
                param=request.begun_by,
            )
        if count != 1:
            raise InvalidRequest(f"a stream reads one input at a time, and these are {count}")
        return [self.start]

    def seal_state(self, snapshot: Snapshot | None) -> str | None:
        if snapshot is None:
            return None
        self.end = snapshot
        return super().seal_state(snapshot) if self.tokens else None
