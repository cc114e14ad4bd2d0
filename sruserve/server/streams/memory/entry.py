"""A stream in this process, with what it owns."""

from dataclasses import dataclass

from sruserve.server.budget import Hold
from sruserve.server.state.life import StateLife
from sruserve.server.streams.memory.host_bytes import HostBytes
from sruserve.server.streams.record import StreamRecord
from sruserve.server.streams.shared_state import SharedState


@dataclass(slots=True, eq=False)
class Entry:
    """A stream and its memory.

    states: by step; None: the stream has read no input yet.
    life: counts the stream, whose states belong to its weights.
    busy: a request has taken the stream.
    left_seconds: its remaining idle time when it was taken.
    room: reserved for the end state of the running step.
    """

    record: StreamRecord
    states: dict[int, SharedState | None]
    bytes: HostBytes
    life: StateLife
    busy: bool = False
    left_seconds: float = 0.0
    room: Hold | None = None

    def release_room(self) -> None:
        """Give back the room that no step needs any more."""
        if self.room is not None:
            self.room.release()
        self.room = None
