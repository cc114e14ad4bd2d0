"""Exchange messages with Redis in bounded time.

The client library's time limits begin a task for each command. Here a timer of the event loop ends
a connection whose replies are late, which the library then reports as lost.
"""

import asyncio
from typing import Any

from redis import exceptions

from sruserve.server.redis_pool import redis_pool

# uvloop raises a `RuntimeError` if a connection closes during a write.
_LOST = (exceptions.ConnectionError, exceptions.TimeoutError, RuntimeError)


class Connections:
    """Connections to Redis, made when they are needed.

    reply_seconds: for the replies to a message; then it is resent once, on another connection.
    """

    def __init__(self, url: str, reply_seconds: float) -> None:
        self.pool, self.reply_seconds = redis_pool(url, reply_seconds), reply_seconds

    async def exchange(self, message: bytes, replies: int, end: float) -> list[Any]:
        """Send commands in one message, and return their replies.

        Raises the first error among the replies after all of them were read, and `TimeoutError` if
        they are late.

        end: when to give up, in the event loop's time.
        """
        loop, is_resent = asyncio.get_running_loop(), False
        while True:
            connection = await self.pool.get_connection(end=end)
            due = min(end, loop.time() + self.reply_seconds)
            timer = loop.call_at(due, _abort, connection)
            received, refusal = [], None
            try:
                connection._writer.write(message)  # sent as a whole before its replies arrive
                for _ in range(replies):
                    try:
                        received.append(await connection.read_response(disable_decoding=True))
                    except exceptions.ResponseError as error:
                        refusal = refusal or error
                if refusal is not None:
                    raise refusal
                return received
            except _LOST:
                await connection.disconnect(nowait=True)
                if loop.time() >= due and (is_resent or due == end):
                    raise TimeoutError("no reply in time") from None
                if is_resent:
                    raise
                is_resent = True
            finally:
                del refusal  # it holds this frame
                timer.cancel()
                await self.pool.release(connection)


def _abort(connection: Any) -> None:
    if connection._writer is not None:
        connection._writer.transport.abort()
