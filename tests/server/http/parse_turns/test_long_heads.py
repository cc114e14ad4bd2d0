"""Heads that are too long, in bytes or in fields, are refused before anybody reads them."""

import httpx
import pytest
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from sruserve.server.http.uvicorn_http import HttpProtocol
from tests.server.http.raw_replies import all_replies, next_reply
from tests.server.http.raw_requests import GET, UPGRADE, code, connect


def test_too_many_headers_are_431_and_not_read_to_their_end(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    on_header = HttpProtocol.on_header

    def see(protocol: HttpProtocol, name: bytes, value: bytes) -> None:
        seen.append(name)
        on_header(protocol, name, value)

    monkeypatch.setattr(HttpProtocol, "on_header", see)
    for count, status in ((255, b"200"), (256, b"431"), (15_000, b"431")):
        seen.clear()
        with connect(client, GET[:-2] + b"a:\r\n" * count + b"\r\n") as connection:
            reply = all_replies(connection) if count > 255 else next_reply(connection)
        if reply or count < 1000:  # a client that goes on sending may lose it
            assert reply[9:12] == status
        if reply and count > 255:
            assert code(reply) == "head_too_large"
        assert len(seen) <= 600


@pytest.mark.parametrize("more", [b"a:" + b"b" * 60_000 + b"\r\n", 250 * b"a:\r\n"])
def test_a_handshake_may_have_what_a_request_may(client: httpx.Client, more: bytes) -> None:
    for begin, status in ((GET, b"200"), (UPGRADE, b"101")):
        with connect(client, begin[:-2] + more + b"\r\n") as connection:
            assert next_reply(connection)[9:12] == status


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"connection: ", b"connection: %b, "),
        (b"sec-websocket-v", b"sec-websocket-extensions: %b\r\nsec-websocket-v"),
    ],
    ids=["connection", "extensions"],
)
def test_a_long_offer_of_a_handshake_is_431_before_anybody_reads_it(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, before: bytes, after: bytes
) -> None:
    read: list[Request] = []
    accept = ServerProtocol.accept

    def see(protocol: ServerProtocol, request: Request) -> Response:
        read.append(request)
        return accept(protocol, request)

    monkeypatch.setattr(ServerProtocol, "accept", see)
    for count, status in ((450, b"101"), (512, b"431"), (30_000, b"431")):
        read.clear()
        data = UPGRADE.replace(before, after % b",".join([b"a"] * count))
        with connect(client, data) as connection:
            reply = next_reply(connection)
        assert reply[9:12] == status
        assert len(read) == (status == b"101")


@pytest.mark.parametrize("offer", [b"foo", b"websocket"])
def test_a_long_list_of_a_connections_options_is_not_read(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, offer: bytes
) -> None:
    read: list[HttpProtocol] = []
    opens = HttpProtocol._opens_websocket

    def see(protocol: HttpProtocol) -> bool:
        read.append(protocol)
        return opens(protocol)

    monkeypatch.setattr(HttpProtocol, "_opens_websocket", see)
    for count in (1, 60_000):
        more = b"upgrade: %b\r\nconnection: upgrade%b\r\n\r\n" % (offer, count * b",")
        with connect(client, GET[:-2] + more) as connection:
            assert (next_reply(connection)[9:12] == b"431") == (count > 1)
    assert len(read) == 1


@pytest.mark.parametrize("head", [GET, UPGRADE], ids=["request", "handshake"])
@pytest.mark.parametrize("begin", [b"/v1/models/", b"/livez?"])
def test_a_path_or_query_over_8_kib_is_431_before_anybody_reads_it(
    client: httpx.Client, head: bytes, begin: bytes
) -> None:
    rest = head.split(b" ", 2)[2]
    for size, refused in ((8 << 10, False), (8193, True), (60_000, True)):
        with connect(client, b"GET " + begin.ljust(size, b"a") + b" " + rest) as connection:
            reply = all_replies(connection) if refused else next_reply(connection)
        statuses = {GET: (b"200", b"404"), UPGRADE: (b"404",)}[head]
        assert reply[9:12] in ((b"431",) if refused else statuses)
        if refused:
            assert code(reply) == "head_too_large"
