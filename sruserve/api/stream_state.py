"""Where a stream is: its state, and the chunk or completion that reads it on."""

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Self

from sruserve.api.calls import request_of, results_of, schema_of
from sruserve.api.completing import Completing
from sruserve.api.inputs import Inputs
from sruserve.api.local_model import LocalModel
from sruserve.api.results import StreamResult
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.errors import InvalidRequest
from sruserve.server.streams.step_view import StreamView


class StreamState:
    """One stream on the model's loop. Its state may be larger than a token."""

    def __init__(self, local: LocalModel, start: Snapshot | None) -> None:
        self.local = local
        self._state = start
        self._taken_by = ""
        self._view: StreamView | None = None

    @classmethod
    def of(cls, local: LocalModel, state: str | None, preset: str | None) -> Self:
        """A stream from a token, a preset or nothing; raises `ServeError`."""
        local.check_open()
        served = local.with_states
        served.check_streams("state")
        if state is not None and preset is not None:
            raise InvalidRequest("give either 'state' or 'preset', not both", param="state")
        return cls(local, served.initial_state(state, preset))

    @property
    def steps(self) -> int:
        """Tokens or rows of features that the stream has read."""
        return 0 if self._state is None else self._state.steps

    @property
    def token(self) -> str | None:
        """The state as a token; None: the stream has read nothing. Raises `StateTooLarge`."""
        if self._state is not None:
            self.local.with_states.check_fits("state")
        return self.local.with_states.seal_state(self._state)

    def forks(self, count: int) -> list["StreamState"]:
        """Streams in the same state."""
        if count < 1:
            raise InvalidRequest(
                f"a stream cannot be forked into {count}: ask for at least one fork", param="count"
            )
        return [StreamState(self.local, self._state) for _ in range(count)]

    async def send(self, chunk: Any, more: bool, fields: dict[str, Any]) -> StreamResult:
        """Read the next chunk, and return its result."""
        inputs = Inputs(chunk)
        if not inputs.single:
            raise InvalidRequest(
                "a stream reads one input at a time: send several chunks one after another",
                param="input",
            )
        (piece,) = inputs.pieces()
        schema = schema_of(self.local.served)
        request = request_of(schema, {**piece, **fields, "more": more})
        with self._taken("a chunk is being read") as view, view:
            (result,) = await results_of(self.local, request, view)
            self._state = view.end.of(view)
        sent: StreamResult = result
        return sent

    def completing(self, prompt: Any, fields: dict[str, Any]) -> Completing:
        """A completion that continues the stream."""
        return Completing.of(self.local, prompt, fields, stream=self)

    def enter(self, stack: AsyncExitStack) -> StreamView:
        view = stack.enter_context(self._taken("a completion is open"))
        self._view = stack.enter_context(view)
        return view

    def advance(self) -> None:
        assert self._view is not None
        self._state, self._view = self._view.end.of(self._view), None

    @contextmanager
    def _taken(self, what: str) -> Iterator[StreamView]:
        """Take the stream, on the loop; a chunk has no place beside another one."""
        if self._taken_by:
            raise InvalidRequest(
                f"the stream is in use: {self._taken_by}; wait for its end, close it, or fork the "
                "stream before"
            )
        self._taken_by = what
        try:
            yield StreamView(self.local.with_states, self._state, StateOutput.COPY)
        finally:
            self._taken_by = ""
