"""A renewed certificate reaches new connections, and nothing that is open notices."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import websockets
from cryptography import x509
from websockets.asyncio.client import ClientConnection

from sruserve.server.app import Application
from tests.server.conftest import Serve
from tests.server.held_steps import Steps
from tests.server.kserve.conftest import grpc_address
from tests.server.observing import metric, until
from tests.server.posting import COMPLETE
from tests.server.tls.authority import DAY, Authority
from tests.server.tls.clients import address, context, serial_at
from tests.server.tls.conftest import Running

OPEN = 20
PROMPT = {"model": "characters", "prompt": "To be", "max_tokens": 1000}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority whose certificate of the server is renewed."""
    authority = Authority(tmp_path_factory.mktemp("renewing"))
    authority.sign()
    return authority


@pytest.fixture(scope="module")
def renewing(serve: Serve, own: Authority) -> Iterator[Running]:
    settings: dict[str, Any] = {"grpc_port": 0, "max_new_tokens": 1_000_000, **own.settings()}
    with serve("question", "characters", **settings) as running:
        yield running


def serials(running: Running, authority: Authority) -> set[int]:
    """What new connections see over HTTP and gRPC."""
    client, application = running
    ports = address(client)[1], int(grpc_address(application).rpartition(":")[2])
    return {serial_at(port, authority) for port in ports}


def renew(application: Application) -> None:
    assert application.certificates is not None
    application.certificates.on_signal()


def renewed(running: Running, authority: Authority) -> int:
    """Sign another certificate, and wait until new connections see it."""
    serial = authority.sign()
    renew(running[1])
    until(lambda: serials(running, authority) == {serial})
    return serial


def test_a_metric_has_the_end_of_the_certificate_in_force(
    renewing: Running, own: Authority
) -> None:
    def exported() -> datetime:
        seconds = metric(renewing[0], "sru_tls_certificate_expiry_seconds")
        return datetime.fromtimestamp(seconds, UTC)

    for days in (20, 40):
        own.sign(valid=(-DAY, days * DAY))
        renew(renewing[1])
        expected = x509.load_pem_x509_certificate((own.folder / "server.pem").read_bytes())
        until(lambda: exported() == expected.not_valid_after_utc)  # noqa: B023  # runs at once


def test_streams_and_sockets_lose_no_character_while_the_certificate_changes(
    renewing: Running, own: Authority, steps: Steps
) -> None:
    asyncio.run(asyncio.wait_for(_talk(renewing, own, steps), 120))


async def _talk(running: Running, authority: Authority, steps: Steps) -> None:
    base, trusting = str(running[0].base_url).rstrip("/"), context(authority)
    async with (
        httpx.AsyncClient(base_url=base, verify=trusting, timeout=120) as client,
        AsyncExitStack() as stack,
    ):
        url = base.replace("https", "wss", 1) + "/v1/stream"
        sockets = [
            await stack.enter_async_context(
                websockets.connect(url, ssl=trusting, ping_interval=None, open_timeout=60)
            )
            for _ in range(OPEN)
        ]
        first = [await _words(socket) for socket in sockets]
        begun = asyncio.Semaphore(0)
        texts = [asyncio.create_task(_stream(client, seed, begun)) for seed in range(OPEN)]
        for _ in range(OPEN):
            await begun.acquire()
        steps.hold(running[1])
        assert not any(text.done() for text in texts), "longer texts are needed"
        for _ in range(2):
            await asyncio.to_thread(renewed, running, authority)
        steps.go_on()
        second = [await _words(socket) for socket in sockets]
        streamed = await asyncio.gather(*texts)
        for seed in (0, OPEN - 1):
            reply = await client.post(COMPLETE, json=PROMPT | {"seed": seed})
            assert reply.json()["choices"][0]["text"] == streamed[seed]
        async with websockets.connect(
            url, ssl=trusting, ping_interval=None, open_timeout=60
        ) as socket:
            assert [await _words(socket)] * OPEN == first
            assert [await _words(socket)] * OPEN == second
    assert first != second


async def _stream(client: httpx.AsyncClient, seed: int, begun: asyncio.Semaphore) -> str:
    text = ""
    body = PROMPT | {"seed": seed, "stream": True}
    async with client.stream("POST", COMPLETE, json=body) as reply:
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                if not text:
                    begun.release()
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
    return text


async def _words(socket: ClientConnection) -> dict[str, Any]:
    await socket.send(json.dumps({"model": "question", "input": "How far is "}))
    frame: dict[str, Any] = json.loads(await socket.recv())
    return frame


def test_an_unfit_pair_leaves_the_old_one_in_force_and_a_later_signal_takes_a_whole_one(
    renewing: Running, own: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    serial = renewed(renewing, own)
    key = own.folder / "server.key"
    old_key = key.read_bytes()
    own.sign()
    key.write_bytes(old_key)  # as if the new key were not written yet
    caplog.clear()
    renew(renewing[1])
    until(lambda: "does not match the certificate" in caplog.text)
    assert serials(renewing, own) == {serial}
    own.sign(valid=(-2 * DAY, timedelta(seconds=-1)))
    renew(renewing[1])
    until(lambda: "is not valid now" in caplog.text)
    assert serials(renewing, own) == {serial}
    assert [record.levelname for record in caplog.records] == 2 * ["ERROR"]
    renewed(renewing, own)


def test_signals_in_a_row_end_with_the_newest_certificate(
    renewing: Running, own: Authority
) -> None:
    for _ in range(10):
        serial = own.sign()
        renew(renewing[1])
    until(lambda: serials(renewing, own) == {serial})
