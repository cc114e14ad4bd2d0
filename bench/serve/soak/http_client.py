"""The HTTP client of the soak: keep-alive, with a key, and with the codes of errors."""

import asyncio
import json
from typing import Any, Self

from bench.serve.soak.observations import Refused

_SECONDS = 120.0  # timeout of a request


class Http:
    """One connection to 127.0.0.1, reopened after the server has closed it.

    head: of the current reply, in lower case; empty before its head has arrived.
    """

    def __init__(self, port: int, key: str | None) -> None:
        self._port = port
        self._authorization = f"authorization: Bearer {key}\r\n" if key else ""
        self.head = b""
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return a reply's JSON; raises `Refused`, or `OSError` or `EOFError` without a reply."""
        _, reply = await self.request(path, body)
        return json.loads(reply)

    async def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """Return the JSON of all events of a stream; raises `Refused` for an error among them."""
        _, reply = await self.request(path, body)
        lines = [line[6:] for line in reply.split(b"\n") if line.startswith(b"data: {")]
        if b"data: [DONE]" not in reply:
            raise EOFError("the stream ended without [DONE]")
        events = [json.loads(line) for line in lines]
        for each in events:
            if "error" in each:
                raise Refused(f"500 {each['error']['code']} in a stream")
        return events

    async def request(self, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        """Return status and body of a good reply; raises what `ask` raises."""
        try:
            async with asyncio.timeout(_SECONDS):
                status, reply = await self._exchange(path, body)
        except BaseException:
            self.close()
            raise
        if status >= 300:
            raise Refused(f"{status} {_code(reply)}")
        return status, reply

    def close(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def _exchange(self, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        self.head = b""
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            f"{self._authorization}content-type: application/json\r\n"
            f"content-length: {len(data)}\r\n\r\n"
        )
        self._writer.write(head.encode() + data)
        await self._writer.drain()
        return await self._reply(self._reader)

    async def _reply(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        head = self.head = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head.split(b" ", 2)[1])
        if b"transfer-encoding: chunked" in head:
            parts = []
            while size := int(await reader.readuntil(b"\r\n"), 16):
                parts.append((await reader.readexactly(size + 2))[:-2])
            await reader.readexactly(2)
            reply = b"".join(parts)
        else:
            lines = head.split(b"\r\n")
            length = next(int(x.split(b":")[1]) for x in lines if x.startswith(b"content-length:"))
            reply = await reader.readexactly(length)
        if b"connection: close" in head:
            self.close()
        return status, reply


def _code(reply: bytes) -> str:
    try:
        error = json.loads(reply)["error"]
    except (ValueError, KeyError, TypeError):
        return reply[:80].decode(errors="replace")
    return str(error["code"] if isinstance(error, dict) else error)[:80]
