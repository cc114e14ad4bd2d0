"""The state that a step of a stream ends in, and whoever goes on from it."""

from sruserve.server.budget import Hold
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job import Snapshot
from sruserve.server.engine.state_cache.cache import CachedState
from sruserve.server.errors import StateWrongModel
from sruserve.server.repository.served_model import ServedModel


class SharedState:
    """Owns a state out of an engine: freed when the last of its users lets go, and nowhere else.

    Its users are whoever made it, and then the streams and checkpoints that a store keeps.

    nbytes: of its row, wherever it lies.
    host_bytes: of all else that it takes, but for its objects.
    """

    def __init__(self, served: ServedModel, state: Snapshot) -> None:
        self._state: Snapshot | None = state
        self._engine: Engine | None = served.engine
        self.nbytes = served.model.network.layout.nbytes
        self.host_bytes = state.host_bytes
        self.users = 1
        self._row_bytes: Hold | None = None
        self._room: Hold | None = None

    def of(self, served: ServedModel) -> Snapshot:
        """The state, for the model that it is of; raises `StateWrongModel`."""
        if self._state is None or served.engine is not self._engine:
            raise StateWrongModel(
                f"{served.name} was loaded again, and the stream's state ended with the old "
                "engine: create another stream"
            )
        return self._state

    @property
    def frees_room(self) -> bool:
        """Whether the engine has room for another state once its only user lets go."""
        return self.users == 1 and self._room is not None

    def count(self, row_bytes: Hold, room: Hold | None = None) -> None:
        """Release these when it is freed: the bytes of its row, its place in the engine's room."""
        self._row_bytes, self._room = row_bytes, room

    def use(self) -> None:
        """One more uses it, until it calls `leave`."""
        self.users += 1

    def leave(self) -> None:
        self.users -= 1
        if self.users:
            return
        row = self._state.row if self._state is not None else None
        if self._engine is not None and isinstance(row, CachedState):
            self._engine.drop(row)
        for hold in (self._row_bytes, self._room):
            if hold is not None:
                hold.release()

    def end(self, engine: Engine) -> None:
        """If the state is of an engine that has ended, hold on to neither."""
        if self._engine is engine:
            self._engine = self._state = None
