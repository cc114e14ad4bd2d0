"""Limits and waits of a server that no operator sets. Tests choose others."""

from dataclasses import dataclass

TURN = 8 << 10  # characters or ids that one turn on a thread reads: some milliseconds


@dataclass(frozen=True, slots=True)
class Tuning:
    """The names give the units.

    turn_characters: characters or ids of inputs that one turn on a thread reads.
    unload_seconds: for an engine to end, once the requests of its version have ended.
    grpc_hello_seconds: for the handshake of a gRPC connection.
    """

    turn_characters: int = TURN
    unload_seconds: float = 5.0
    grpc_hello_seconds: int = 10


DEFAULT_TUNING = Tuning()
