"""A turn of the event loop parses little, however much has come over how many connections."""

import json
import socket
import threading
from collections.abc import Hashable, Iterator
from contextlib import ExitStack

import httpx
import pytest

from sruserve.server.http.parse_turns import _FRESH_COST, ParseTurns
from sruserve.server.http.uvicorn_http import HttpProtocol
from sruserve.server.websocket.request import WebSocketRequest
from sruserve.server.websocket.uvicorn_websocket import WebSocketProtocol
from tests.server.conftest import Serve
from tests.server.http.parse_turns.counted_events import Counted
from tests.server.http.raw_replies import next_reply
from tests.server.http.raw_requests import CHUNKED, GET, UPGRADE, connect, head
from tests.server.observing import until

FRAGMENTS = b"\x01\x80" + bytes(4), b"\x00\x80" + bytes(4)  # the first, and one more
CONNECTIONS = 24


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    """Counts nothing yet."""
    counted = Counted(monkeypatch)
    yield counted
    counted.loop = None


@pytest.mark.parametrize(
    ("data", "event", "max_in_turn"),
    [
        (GET * 2000, "on_headers_complete", 128),
        (GET[:-2] + b"a:\r\n" * 15_000 + b"\r\n", "on_header", 6000),
        (CHUNKED + b"1\r\n \r\n" * 10_000, "on_body", 5000),
        (head(100) + b"a" * 100 + CHUNKED + b"1\r\n \r\n" * 10_000, "on_body", 5000),
        (CHUNKED + b"0\r\nx: y\r\n\r\n" + GET * 2000, "on_headers_complete", 128),
    ],
    ids=["heads", "headers", "chunks", "chunks behind a body", "heads behind trailers"],
)
def test_a_turn_parses_little_of_what_comes_over_http(
    serve: Serve, counted: Counted, data: bytes, event: str, max_in_turn: int
) -> None:
    counted.count(HttpProtocol, event)
    with serve("question", receive_grace_seconds=60) as (client, _), ExitStack() as stack:
        client.get("/livez")
        client.post("/v1/score", content=b"{")
        opened = [stack.enter_context(connect(client, b"")) for _ in range(CONNECTIONS)]
        client.get("/livez")  # they are open
        counted.arrive(opened, data)
        assert client.get("/livez").status_code == 200
        until(lambda: counted.all > max_in_turn)
        assert client.get("/livez").status_code == 200
        assert counted.max_in_turn <= 2 * max_in_turn  # a turn may end between two that are counted


def test_long_chunks_cost_no_more_than_a_body_of_known_length_does(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs: list[int] = []
    spend = ParseTurns.spend

    def see(turns: ParseTurns, cost: int, owner: Hashable) -> None:
        costs.append(cost)
        spend(turns, cost, owner)

    body = b'{"input":"a"}'.ljust(1 << 20)
    chunks = (body[at : at + (16 << 10)] for at in range(0, len(body), 16 << 10))
    with serve("question") as (client, _):
        client.post("/v1/classify", content=body)
        monkeypatch.setattr(ParseTurns, "spend", see)
        assert client.post("/v1/classify", content=body).status_code == 200
        known, costs[:] = sum(costs), []
        assert client.post("/v1/classify", content=chunks).status_code == 200
    assert sum(costs) < 4 * known


def test_an_idle_connection_keeps_no_head(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    idle: list[HttpProtocol] = []
    on_response_complete = HttpProtocol.on_response_complete

    def see(protocol: HttpProtocol) -> None:
        on_response_complete(protocol)
        idle.append(protocol)

    def has_head() -> bool:
        return any((idle[-1].scope, idle[-1].cycle, idle[-1]._running, idle[-1].headers))

    monkeypatch.setattr(HttpProtocol, "on_response_complete", see)
    with serve("question") as (client, _):
        for count in (1, 2):
            client.post("/v1/classify", json={"input": "a"})
            until(lambda count=count: len(idle) == count)  # type: ignore[misc]
            until(lambda: not has_head())
        assert idle[0] is idle[1]
        with connect(client, GET[:-2] + b"content-length: 1\r\n\r\n") as connection:
            assert b" 200 " in next_reply(connection)
            until(lambda: idle[-1] is not idle[0])
            connection.sendall(b"a")
            until(lambda: not has_head())


@pytest.mark.parametrize(
    ("head", "status"), [(GET, b" 200 "), (UPGRADE, b" 101 ")], ids=["request", "socket"]
)
def test_a_head_may_begin_before_the_reply_to_another_request_and_end_after_it(
    serve: Serve, head: bytes, status: bytes
) -> None:
    with serve("question") as (client, _), connect(client, GET + head[:20]) as connection:
        assert b" 200 " in next_reply(connection)
        connection.sendall(head[20:])
        assert status in next_reply(connection)


def test_few_long_heads_end_in_a_turn(serve: Serve, counted: Counted) -> None:
    long = GET.replace(b"livez", b"livez?".ljust(8000, b"a"))
    counted.count(HttpProtocol, "on_headers_complete")
    with serve("question", receive_grace_seconds=60) as (client, application), ExitStack() as stack:
        client.get("/livez")
        opened = [stack.enter_context(connect(client, b"")) for _ in range(CONNECTIONS)]
        for each in opened:
            each.sendall(long[:-1])
        client.get("/livez")  # what they sent is here
        until(lambda: not application.intake.turns._waiting)
        counted.arrive(opened, long[-1:])
        until(lambda: counted.all == CONNECTIONS)
        client.get("/livez")
        assert counted.max_in_turn <= 6  # a turn may end between two that are counted


def test_a_turn_begins_few_of_the_requests_that_wait_after_others(
    serve: Serve, counted: Counted
) -> None:
    max_in_turn, connections = 16, 4 * CONNECTIONS
    counted.count(HttpProtocol, "_start_asgi_task")
    with serve("question", receive_grace_seconds=60) as (client, _), ExitStack() as stack:
        client.get("/livez")
        opened = [stack.enter_context(connect(client, b"")) for _ in range(connections)]
        client.get("/livez")  # they are open
        counted.arrive(opened, GET * 40, after=2 * connections)  # the first of each begin at once
        until(lambda: counted.all > 39 * connections)
        assert 0 < counted.max_in_turn <= 2 * max_in_turn


def test_requests_after_others_leave_time_for_what_has_just_arrived(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    on_response_complete = HttpProtocol.on_response_complete

    def see(protocol: HttpProtocol) -> None:
        on_response_complete(protocol)
        left.append(protocol._turns.budget)

    monkeypatch.setattr(HttpProtocol, "on_response_complete", see)
    with serve("question") as (client, _), ExitStack() as stack:
        for _ in range(4 * CONNECTIONS):
            stack.enter_context(connect(client, GET * 60))
        until(lambda: len(left) == 240 * CONNECTIONS)
    assert min(left[120 * CONNECTIONS : 200 * CONNECTIONS]) > _FRESH_COST // 2


def test_a_turn_parses_few_frames(serve: Serve, counted: Counted) -> None:
    max_in_turn = 1400
    counted.count(WebSocketProtocol, "handle_events")
    with serve("question", receive_grace_seconds=60) as (client, _), ExitStack() as stack:
        opened = []
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(connect(client, UPGRADE))
            assert b" 101 " in next_reply(connection)
            connection.sendall(FRAGMENTS[0])
            opened.append(connection)
        counted.count(WebSocketProtocol, "handle_cont")
        counted.arrive(opened, FRAGMENTS[1] * 10_000)
        assert client.get("/livez").status_code == 200
        until(lambda: counted.all > 20 * max_in_turn)
        assert counted.max_in_turn <= 2 * max_in_turn


def test_a_turn_answers_few_of_the_frames_that_wait_after_others(
    serve: Serve, counted: Counted
) -> None:
    max_in_turn, frame = 16, b'{"op":"state"}'
    state = b"\x81" + bytes([0x80 | len(frame)]) + bytes(4) + frame
    counted.count(WebSocketRequest, "drop_data")  # twice of each frame
    with serve("question", receive_grace_seconds=60) as (client, _), ExitStack() as stack:
        opened = []
        begin = b'{"model":"question"}'
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(connect(client, UPGRADE))
            assert b" 101 " in next_reply(connection)
            connection.sendall(b"\x81" + bytes([0x80 | len(begin)]) + bytes(4) + begin)
            assert b"classify" in connection.recv(4096)
            opened.append(connection)
        counted.arrive(opened, state * 40, after=4 * CONNECTIONS)  # the first are answered at once
        until(lambda: counted.all == 80 * CONNECTIONS)
        assert 0 < counted.max_in_turn <= 4 * max_in_turn


def test_pieces_change_no_reply(client: httpx.Client) -> None:
    """Heads, bodies and chunks of all lengths, in a row and cut anywhere."""
    rows, statuses = [], []
    for size in (0, 1, 900, 1024, 3000, 40_000):
        text = json.dumps(
            {"model": "question", "input": "a b " + "\r\n\r\n" * (size // 8)}
        ).encode()
        text += b" " * (size // 2)
        one = head(len(text), b"x: " + b"y" * (size % 2000)).replace(b"/score", b"/classify") + text
        chunks = b"".join(
            b"%x\r\n%b\r\n" % (len(text[at : at + 700]), text[at : at + 700])
            for at in range(0, len(text), 700)
        )
        two = CHUNKED.replace(b"/score", b"/classify") + chunks + b"0\r\nx: y\r\n\r\n"
        rows += [one, GET, two, b"\r\n\r\n" + GET * 20]
        statuses += [200] * 23
    data = b"".join(rows)
    for cut in (len(data), 16_384, 1024, 1021, 300):
        with connect(client, b"") as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def send(connection: socket.socket = connection, cut: int = cut) -> None:
                for at in range(0, len(data), cut):
                    connection.sendall(data[at : at + cut])

            sender = threading.Thread(target=send)
            sender.start()
            received = b""
            while received.count(b"HTTP/1.1 ") < len(statuses):
                part = connection.recv(1 << 20)
                assert part, received[-400:]
                received += part
            sender.join()
            assert received.count(b"HTTP/1.1 200 ") == len(statuses)


@pytest.mark.parametrize(
    ("begin", "data", "kind", "event"),
    [
        (b"", GET * 2000, HttpProtocol, "on_headers_complete"),
        (b"", CHUNKED + b"1\r\n \r\n" * 10_000, HttpProtocol, "on_body"),
        (UPGRADE, FRAGMENTS[0] + FRAGMENTS[1] * 10_000, WebSocketProtocol, "handle_cont"),
    ],
    ids=["heads", "chunks", "frames"],
)
def test_what_waits_of_a_client_that_leaves_is_dropped(
    serve: Serve,
    counted: Counted,
    begin: bytes,
    data: bytes,
    kind: type,
    event: str,
) -> None:
    counted.count(HttpProtocol, "on_message_begin")
    with serve("question", receive_grace_seconds=60) as (client, application):
        application.intake.disconnects.poll_seconds = 0.005
        client.get("/livez")
        with connect(client, begin) as connection:
            assert not begin or b" 101 " in next_reply(connection)
            counted.count(kind, event)
            client.get("/livez")
            counted.arrive([connection], data, closed=True)
        until(lambda: application.connections.open == 1)
        assert counted.all < 9000
