"""The state of a WebSocket's stream between its frames."""

from dataclasses import dataclass, field

from sruserve.server.budget import Hold
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.state.envelope import SealedStates
from sruserve.server.tasks.limits import text_numbers

_FLOAT_BYTES = 4  # of a number in a state's row
_SOCKET_BYTES = 4096  # of a socket without its stream's state


@dataclass(slots=True)
class Session:
    """The stream of a socket. It does not refer to the model, which may be unloaded meanwhile.

    states: seals states of its model and tenant.
    state: after the last answered frame; None: no input was read yet.
    """

    states: SealedStates
    state: Snapshot | None
    _bytes: Hold = field(init=False)

    def __post_init__(self) -> None:
        self._bytes = self.states.tenant.state_budget.hold()
        self.states.life.refcount += 1
        self.states.mark_used()

    def token(self) -> str | None:
        """The state as a token; raises `StateTooLarge`."""
        self.states.check_fit("state")
        return None if self.state is None else self.states.seal(self.state)

    @property
    def token_numbers(self) -> int:
        """The size of the token, in numbers of a reply."""
        if self.state is None:
            return 0
        texts = text_numbers(self.state.word) + text_numbers(self.state.held_back)
        return self.states.nbytes // _FLOAT_BYTES + texts

    def continue_from(self, state: Snapshot | None) -> None:
        """Replace the state, and count it for the tenant.

        Raises `StateQuotaExceeded` and then changes nothing.
        """
        nbytes = self.states.nbytes if state is None else state.host_bytes
        self._bytes.resize(max(self.states.nbytes, nbytes) + _SOCKET_BYTES)
        self.state = state
        self.states.mark_used()

    def release(self) -> None:
        """Stop counting the state."""
        self._bytes.release()
        self.states.life.refcount -= 1
