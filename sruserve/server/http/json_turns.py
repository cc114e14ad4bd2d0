"""Let JSON wait for its turn before it is parsed and validated, which blocks the event loop."""

import asyncio
from typing import Protocol

from sruserve.server.json_limits import check_json_size, parsing_cost
from sruserve.server.offload import LONG_BYTES, Waiter, offload

# Shorter JSON costs less than an answer to it, and is parsed at once.
SHORT_JSON_BYTES = 1 << 10


class TurnTaker(Protocol):
    """A connection that takes turns with others."""

    def take_turn(self, cost: int) -> asyncio.Future[None] | None: ...


async def turn_to_parse(json: bytes, connection: TurnTaker | None, caller: Waiter) -> None:
    """Return when the event loop may parse this JSON.

    Raises `InputTooLong` if it would block for too long. connection: None: turns are not taken.
    """
    size = len(json)
    cost = await offload(size > LONG_BYTES, _checked_cost, json, cost=size, caller=caller)
    if connection is not None and (begun := connection.take_turn(cost)) is not None:
        await caller.wait(begun)


def _checked_cost(json: bytes) -> int:
    check_json_size(json)
    return parsing_cost(json)
