"""Replies to HTTP/1.0, which knows no chunks: one without a length ends with its connection."""

from typing import Any, cast

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def close_delimited(app: ASGI3Application) -> ASGI3Application:
    """The application for a request of HTTP/1.0, after whose reply uvicorn closes."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        cycle = cast(RequestResponseCycle, send.__self__)

        async def send_plain(message: Any) -> None:
            if message["type"] == "http.response.start":  # uvicorn 0.52 adds none
                headers = [h for h in message.get("headers", ()) if h[0].lower() != b"connection"]
                message = {**message, "headers": [*headers, (b"connection", b"close")]}
            cycle.chunked_encoding = False
            cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return answer
