"""The room that engines have for the states of streams, in a fair part for each tenant."""

from collections.abc import Sequence

from sruserve.server.budget import Budget
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.errors import ServeError, TooManyAtOnce
from sruserve.server.streams.memory.host_bytes import STATE_BYTES, STREAM_BYTES
from sruserve.server.streams.shares import fair_shares


class StateRooms:
    """The parts of each engine's room for states, with one for the running step of each stream.

    Each tenant has room for one state more, in a step that frees another one.

    quotas: the maximal total bytes of each tenant.
    """

    def __init__(self, quotas: Sequence[int]) -> None:
        self._quotas = quotas
        self.rooms: dict[JobEngine, Budget] = {}

    def of(self, engine: Engine) -> Budget:
        """The parts of an engine's room."""
        room = self.rooms.get(engine)
        if room is None:
            row_bytes = engine.model.network.layout.nbytes
            stream_bytes, state_bytes = STREAM_BYTES + STATE_BYTES, row_bytes + STATE_BYTES
            demands = [quota // stream_bytes + quota // state_bytes for quota in self._quotas]
            limit = engine.max_cached_states - len(demands)
            room = self.rooms[engine] = fair_shares(limit, demands, _no_room)
        return room

    def forget(self, engine: JobEngine) -> None:
        """Drop the reference to an engine that has ended."""
        self.rooms.pop(engine, None)


def _no_room() -> ServeError:
    return TooManyAtOnce(
        "server-held streams use all states of this model allowed to this API key "
        "(SRUSERVE_STATE_HOST_BYTES): delete streams, or continue with state tokens"
    )
