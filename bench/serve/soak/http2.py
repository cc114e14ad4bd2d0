"""The part of HTTP/2 that is needed to start gRPC messages and never end them."""

import asyncio
import struct

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW = 0x0, 0x1, 0x4, 0x6, 0x8
_END_HEADERS, _ACK = 0x4, 0x1
_PIECE = 16 << 10


async def unfinished(port: int, path: str, streams: int, length: int, seconds: float) -> None:
    """Open a connection with `streams` calls, each with a message without its last byte.

    length: bytes of each message. seconds: how long the connection stays open.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    drain = asyncio.create_task(_read(reader, writer))
    try:
        writer.write(_PREFACE + frame(_SETTINGS, 0, 0, b""))
        for number in range(1, 2 * streams, 2):
            writer.write(frame(_HEADERS, _END_HEADERS, number, _head(path)))
            writer.write(frame(_DATA, 0, number, b"\0" + struct.pack(">I", length)))
        # Send only as much as the flow-control windows allow; otherwise the server disconnects.
        for number in range(1, 2 * streams, 2):
            writer.write(frame(_DATA, 0, number, bytes(min(length, _PIECE) - 1)))
            await writer.drain()
        await asyncio.sleep(seconds)
    finally:
        drain.cancel()
        writer.close()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Acknowledge settings and pings, so that the server keeps the connection."""
    while head := await reader.readexactly(9):
        size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        payload = await reader.readexactly(size)
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            writer.write(frame(kind, _ACK, 0, payload if kind == _PING else b""))


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Encode a frame, which starts with its length."""
    size = len(payload).to_bytes(3, "big")
    return size + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _head(path: str) -> bytes:
    """Encode a call's headers, without indexing or compression."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": "127.0.0.1",
        "te": "trailers", "content-type": "application/grpc",
    }  # fmt: skip
    texts = [text.encode("utf-8", "surrogateescape") for pair in fields.items() for text in pair]
    parts = [b"\0" if i % 2 == 0 else b"" for i in range(len(texts))]
    return b"".join(p + bytes((len(t),)) + t for p, t in zip(parts, texts, strict=True))
