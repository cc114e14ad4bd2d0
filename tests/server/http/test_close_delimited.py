"""Clients of HTTP/1.0, such as nginx without `proxy_http_version`, can read every reply."""

import json

import httpx
import pytest

from tests.server.http.raw_replies import all_replies
from tests.server.http.raw_requests import connect


def reply(client: httpx.Client, method: str, path: str, body: bytes = b"") -> tuple[bytes, bytes]:
    """The head and the body of the reply, which ends with its connection."""
    request = f"{method} {path} HTTP/1.0\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    with connect(client, request) as connection:
        head, _, content = all_replies(connection).partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head
    return head, content


@pytest.mark.parametrize(
    ("path", "more", "last"),
    [
        ("/v1/completions", {"prompt": "To be"}, b"data: [DONE]\n\n"),
        ("/v1/responses", {"input": "To be", "max_output_tokens": 5}, b"}\n\n"),
    ],
)
def test_events_are_sent_without_chunks(
    client: httpx.Client, path: str, more: dict[str, object], last: bytes
) -> None:
    body = {"model": "characters", "stream": True} | more
    head, content = reply(client, "POST", path, json.dumps(body).encode())
    assert b"transfer-encoding" not in head
    assert content.startswith((b"data: {", b"event: "))
    assert content.endswith(last)
    for line in content.splitlines():
        if line.startswith(b"data: {"):
            json.loads(line.removeprefix(b"data: "))


@pytest.mark.parametrize("path", ["/livez", "/openapi.json", "/absent"])
def test_other_replies_have_their_length(client: httpx.Client, path: str) -> None:
    head, content = reply(client, "GET", path)
    assert b"\r\ncontent-length: %d\r\n" % len(content) in head
    assert reply(client, "HEAD", path)[1] == b""


def test_chunks_in_an_old_request_are_refused(client: httpx.Client) -> None:
    request = b"POST /v1/score HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    with connect(client, request) as connection:
        assert all_replies(connection).startswith(b"HTTP/1.1 400 ")
