"""JSON of many parts is parsed in turns, and short requests wait for none of it."""

from collections.abc import Hashable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from sruserve.server.engine.job import Job
from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.http import json_turns
from sruserve.server.http.parse_queue import ParseQueue
from sruserve.server.http.parse_turns import ParseTurns
from sruserve.server.http.uvicorn_http import HttpProtocol
from sruserve.server.offload import LONG_BYTES
from sruserve.server.websocket.request import WebSocketRequest
from tests.server.conftest import Serve
from tests.server.http.parse_turns.counted_events import Counted
from tests.server.http.raw_replies import next_reply
from tests.server.http.raw_requests import GET, UPGRADE, connect, frame
from tests.server.keys import ACME, OTHER
from tests.server.observing import until

CONNECTIONS = 24
LISTS = b"[" + b",".join([b"[5]"] * 9000) + b"]"
SHORT = b'{"model":"question","input":"How far?"}'


def post(path: str, body: bytes, key: str | None = None) -> bytes:
    """A request over a raw connection."""
    more = f"authorization: Bearer {key}\r\n" if key else ""
    return (
        f"POST {path} HTTP/1.1\r\nhost: x\r\n{more}content-length: {len(body)}\r\n\r\n".encode()
        + body
    )


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    """Counts nothing yet."""
    counted = Counted(monkeypatch)
    yield counted
    counted.loop = None


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[HttpProtocol]:
    """The connections whose requests are answered, in the order of the answers."""
    answered: list[HttpProtocol] = []
    on_response_complete = HttpProtocol.on_response_complete

    def see(protocol: HttpProtocol) -> None:
        answered.append(protocol)
        on_response_complete(protocol)

    monkeypatch.setattr(HttpProtocol, "on_response_complete", see)
    return answered


def place_of(answered: list[HttpProtocol], port: int) -> int:
    """How many requests were answered before that of a client's port."""
    return [each.client[1] for each in list(answered) if each.client].index(port)


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/v1/classify", b'{"input":%b}', b"422"),
        ("/v1/responses", b'{"input":%b}', b"422"),
        ("/v1/streams", b'{"model":%b}', b"422"),
        ("/v1/streams/{}/steps", b'{"step":1,"inputs":%b}', b"422"),
        ("/predict?model=question", b'{"inputs":%b}', b"422"),
        ("/v2/models/question/infer", b'{"inputs":%b}', b"400"),
    ],
    ids=["classify", "responses", "streams", "steps", "predict", "infer"],
)
def test_a_turn_parses_few_long_bodies(
    serve: Serve, counted: Counted, path: str, fields: bytes, status: bytes
) -> None:
    counted.count(HttpProtocol, "on_response_complete")
    with serve("question", receive_grace_seconds=60) as (client, server), ExitStack() as stack:
        stream = client.post("/v1/streams", json={"model": "question"}).json()["id"]
        opened = [stack.enter_context(connect(client, b"")) for _ in range(CONNECTIONS)]
        until(lambda: server.connections.open == CONNECTIONS + 1)
        counted.arrive(opened, post(path.format(stream), fields % LISTS))
        for each in opened:
            assert next_reply(each)[9:12] == status
        assert 0 < counted.max_in_turn <= 2


@pytest.mark.parametrize("text_bytes", [0, LONG_BYTES], ids=["on the loop", "on a thread"])
def test_tensors_in_json_are_counted_once_and_take_one_turn(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, text_bytes: int
) -> None:
    counted, taken = list[int](), list[int]()
    count, take = json_turns._checked_cost, ParseTurns.take

    def see_count(json: bytes) -> int:
        counted.append(len(json))
        return count(json)

    def see_turn(turns: ParseTurns, cost: int, owner: Hashable) -> Any:
        taken.append(cost)
        return take(turns, cost, owner)

    monkeypatch.setattr(json_turns, "_checked_cost", see_count)
    monkeypatch.setattr(ParseTurns, "take", see_turn)
    body = b'{"id":"%b","inputs":%b}' % (b"x" * text_bytes, LISTS)
    with serve("question") as (client, _):
        reply = client.post("/v2/models/question/infer", content=body)
    assert reply.status_code == 400
    assert counted == [len(body)]
    assert [cost > 9000 for cost in taken] == [True]


def test_a_turn_parses_few_long_frames(serve: Serve, counted: Counted) -> None:
    counted.count(WebSocketRequest, "drop_data")  # twice of each frame
    data = b'{"input":%b}' % LISTS
    with serve("question", receive_grace_seconds=60) as (client, _), ExitStack() as stack:
        opened = []
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(connect(client, UPGRADE))
            assert b" 101 " in next_reply(connection)
            connection.sendall(frame(b"{}", 2))
            assert b"classify" in connection.recv(4096)
            opened.append(connection)
        counted.arrive(opened, frame(data, len(data)))
        for each in opened:
            assert b"error" in each.recv(4096)
        until(lambda: counted.all == 2 * CONNECTIONS)
        assert 0 < counted.max_in_turn <= 4


@pytest.mark.parametrize("request_", [GET, post("/v1/classify", SHORT)], ids=["probe", "classify"])
def test_a_short_request_waits_for_few_long_ones_of_its_address(
    serve: Serve,
    counted: Counted,
    answered: list[HttpProtocol],
    request_: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered_before, submit = list[int](), JobEngine.submit

    def see(engine: JobEngine, job: Job) -> None:
        answered_before.append(len(answered))  # its thread may be late on a busy machine
        submit(engine, job)

    monkeypatch.setattr(JobEngine, "submit", see)
    counted.count(HttpProtocol, "on_headers_complete")
    with serve("question", receive_grace_seconds=60) as (client, server), ExitStack() as stack:
        client.get("/livez")
        opened = [stack.enter_context(connect(client, b"")) for _ in range(4 * CONNECTIONS)]
        short = stack.enter_context(connect(client, b""))
        until(lambda: server.connections.open == 4 * CONNECTIONS + 2)
        answered.clear()
        long = post("/v1/classify", b'{"input":%b}' % LISTS)
        counted.arrive(opened, long, last=(short, request_))
        port = short.getsockname()[1]
        assert next_reply(short)[9:12] == b"200"
        answered_before.append(place_of(answered, port))
        assert answered_before[0] <= CONNECTIONS // 2
        for each in opened:
            assert next_reply(each)[9:12] == b"422"


def test_a_short_request_waits_for_few_pieces_of_half_read_bodies(
    serve: Serve, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[int] = []
    parse_piece = HttpProtocol._parse_piece

    def see(protocol: HttpProtocol, piece: bytes) -> None:
        if protocol.client is not None:
            pieces.append(protocol.client[1])
        parse_piece(protocol, piece)

    monkeypatch.setattr(HttpProtocol, "_parse_piece", see)
    counted.count(HttpProtocol, "on_headers_complete")
    body = b"{".ljust(60_000)
    with serve("question", receive_grace_seconds=60) as (client, server), ExitStack() as stack:
        client.get("/livez")
        opened = [
            stack.enter_context(connect(client, post("/v1/classify", body)[: -len(body)]))
            for _ in range(4 * CONNECTIONS)
        ]
        short = stack.enter_context(connect(client, b""))
        until(lambda: counted.all == 4 * CONNECTIONS + 1)
        until(lambda: server.connections.open == 4 * CONNECTIONS + 2)
        pieces.clear()
        counted.arrive(opened, body, last=(short, GET))
        assert next_reply(short)[9:12] == b"200"
        # some at once, then 8 pieces in each turn
        assert pieces.index(short.getsockname()[1]) < 4 * CONNECTIONS
        for each in opened:
            assert next_reply(each)[9:12] == b"400"


def test_a_long_request_does_not_wait_for_those_of_another_tenant(
    serve: Serve,
    counted: Counted,
    answered: list[HttpProtocol],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the same address: its tenant is known once its head is parsed."""
    others: list[Hashable] = []
    pop = ParseQueue.pop

    def see(queue: ParseQueue[Any]) -> Any:
        owners = dict(queue._places)
        waiter = pop(queue)
        if waiter.owner != owners[waiter][0]:
            others.append(owners[waiter])
        return waiter

    monkeypatch.setattr(ParseQueue, "pop", see)
    counted.count(HttpProtocol, "on_headers_complete")
    keys = f"acme:{ACME},other:{OTHER}"
    with (
        serve("question", api_keys=keys, receive_grace_seconds=60) as (client, server),
        ExitStack() as stack,
    ):
        client.get("/livez")
        opened = [stack.enter_context(connect(client, b"")) for _ in range(4 * CONNECTIONS)]
        other = stack.enter_context(connect(client, b""))
        until(lambda: server.connections.open == 4 * CONNECTIONS + 2)
        answered.clear()
        body = b'{"input":%b}' % LISTS
        last = other, post("/v1/classify", body, OTHER)
        counted.arrive(opened, post("/v1/classify", body, ACME), last=last)
        port = other.getsockname()[1]
        assert next_reply(other)[9:12] == b"422"
        assert place_of(answered, port) <= 2 * CONNECTIONS
        assert not others  # each waited among those of its owner
        for each in opened:
            assert next_reply(each)[9:12] == b"422"
