"""The end state of a step, with a reference count of the streams that use it."""

from sruserve.server.budget import Hold
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.engine.state_cache.cache import CachedState
from sruserve.server.errors import StateWrongModel
from sruserve.server.repository.served_model import ServedModel


class SharedState:
    """Owns a state of an engine. The last of its owners frees it by `release`.

    Its owners are its creator, and then the streams and checkpoints of a store.

    nbytes: of its row, on the device or in host memory.
    host_bytes: of its other data, without Python objects.
    """

    def __init__(self, served: ServedModel, state: Snapshot) -> None:
        self._state: Snapshot | None = state
        self._engine: Engine | None = served.engine
        self.nbytes = served.model.network.layout.nbytes
        self.host_bytes = state.host_bytes
        self.refcount = 1
        self._row_bytes: Hold | None = None
        self._room: Hold | None = None

    def of(self, served: ServedModel) -> Snapshot:
        """The state for a model; raises `StateWrongModel` if another engine made it."""
        if self._state is None or served.engine is not self._engine:
            raise StateWrongModel(
                f"the version of {served.name} that the stream's state belongs to was unloaded: "
                "create another stream"
            )
        return self._state

    @property
    def frees_room(self) -> bool:
        """Whether releasing its only user makes room for another state in the engine."""
        return self.refcount == 1 and self._room is not None

    def count(self, row_bytes: Hold, room: Hold | None = None) -> None:
        """Own the holds of its row's bytes and of its place in the engine until it is freed."""
        self._row_bytes, self._room = row_bytes, room

    def retain(self) -> None:
        """Add a user, which has to call `release`."""
        self.refcount += 1

    def release(self) -> None:
        """Remove a user; the last one frees the state."""
        self.refcount -= 1
        if self.refcount:
            return
        row = self._state.row if self._state is not None else None
        if self._engine is not None and isinstance(row, CachedState):
            self._engine.drop(row)
        self._release_holds()

    @property
    def lost(self) -> bool:
        """Whether its engine has ended."""
        return self._state is None

    def end(self, engine: JobEngine) -> None:
        """Drop the state, its holds and its engine if this is the engine, which has ended."""
        if self._engine is engine:
            self._engine = self._state = None
            self.nbytes = self.host_bytes = 0
            self._release_holds()

    def _release_holds(self) -> None:
        for hold in (self._row_bytes, self._room):
            if hold is not None:
                hold.release()
        self._row_bytes = self._room = None
