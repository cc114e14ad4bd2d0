"""A minimal keep-alive HTTP client, so that the load generator uses little of the machine."""

import asyncio
import json
from typing import Any, Self, cast


class HttpClient(asyncio.Protocol):
    """Sends one request at a time and returns its status and body."""

    def __init__(self) -> None:
        self._reply = bytearray()
        self._waiter: asyncio.Future[tuple[int, bytes]] | None = None

    @classmethod
    async def connect(cls, port: int) -> Self:
        """Connect to 127.0.0.1."""
        _, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return client

    async def post(self, path: str, body: dict[str, Any] | bytes) -> tuple[int, bytes]:
        """Post a body; returns the reply's status and body. Raises `ConnectionError`."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"content-length: {len(data)}\r\n\r\n"
        )
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(head.encode() + data)
        return await self._waiter

    async def post_json(self, path: str, body: dict[str, Any]) -> Any:
        """Post JSON; returns the reply's JSON. Raises `ConnectionError` unless it is 200 or 201."""
        status, reply = await self.post(path, body)
        if status not in (200, 201):
            raise ConnectionError(f"{path} answered {status}: {reply[:300]!r}")
        return json.loads(reply)

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        self._reply += data
        head, end, body = self._reply.partition(b"\r\n\r\n")
        if not end or self._waiter is None or self._waiter.done():
            return
        lines = bytes(head).lower().split(b"\r\n")
        length = next(int(x.split(b":")[1]) for x in lines if x.startswith(b"content-length:"))
        if len(body) >= length:
            self._reply.clear()
            self._waiter.set_result((int(lines[0].split()[1]), bytes(body)))

    def connection_lost(self, _: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionError("the server closed the connection"))
