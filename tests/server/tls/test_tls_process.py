"""SIGHUP of real processes: it renews their certificate, and never ends them."""

import signal
import socket
import ssl
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.server.observation.json_server import json_server
from tests.server.observing import until
from tests.server.processes import (
    Process,
    ended,
    grpc_port_of,
    is_ready,
    preloaded,
    serving,
    start,
)
from tests.server.test_running import workers_of
from tests.server.tls.authority import Authority
from tests.server.tls.clients import address, context, serial_at
from tests.server.tls.sockets import open_websocket


@pytest.fixture
def own(tmp_path: Path) -> Authority:
    authority = Authority(tmp_path)
    authority.sign()
    return authority


def test_all_workers_renew_and_one_that_is_replaced_needs_no_fit_files(
    folders: Path, own: Authority
) -> None:
    with serving(folders / "question", workers="2", **own.settings()) as (client, process):
        port = address(client)[1]

        def seen() -> set[int]:
            return {serial_at(port, own) for _ in range(40)}

        until(lambda: len(workers_of(process)) == 2)
        serial = own.sign()
        process.send_signal(signal.SIGHUP)
        until(lambda: seen() == {serial})
        (own.folder / "server.key").write_text("no key")
        process.send_signal(signal.SIGHUP)
        victim, other = workers_of(process)
        victim.kill()
        until(lambda: len({w.pid for w in workers_of(process)} - {victim.pid}) == 2)
        other.kill()  # so the new worker alone answers, once it is ready
        until(lambda: is_ready(client))
        assert serial_at(port, own) == serial
        process.send_signal(signal.SIGTERM)
        output = ended(process)
    assert "the TLS certificate is not renewed" in output


def test_signals_while_models_are_loaded_and_drained_renew_also_under_nohup(
    folders: Path, own: Authority
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        process = start(str(folders / "characters"), **own.settings())
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        port = int(line_of(process, "starting on").rpartition(":")[2])
        serial = own.sign()
        process.send_signal(signal.SIGHUP)
        line_of(process, "renewed the TLS certificate")
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=False) as client:
            until(lambda: is_ready(client))
        assert serial_at(port, own) == serial
        process.send_signal(signal.SIGTERM)
        for _ in range(3):
            process.send_signal(signal.SIGHUP)
        ended(process)
    finally:
        process.kill()
        process.communicate(timeout=300)


def line_of(process: Process, text: str) -> str:
    """The next line of a process's log with a text."""
    assert process.stdout is not None
    while text not in (line := process.stdout.readline()):
        assert line, f"the server ended before it wrote: {text}"
    return line


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_unfit_certificate_ends_the_start_in_one_line(
    folders: Path, own: Authority, workers: str
) -> None:
    (own.folder / "server.key").write_text("no key")
    process = preloaded(str(folders / "characters"), workers=workers, **own.settings())
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 2
    assert output.count("\n") == 1
    assert "SRUSERVE_TLS_KEY" in output


@pytest.mark.parametrize("checked", [True, False], ids=["client certificates", "none"])
def test_grpc_keeps_no_sessions_of_tls_1_2_with_client_certificates(
    folders: Path, own: Authority, checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a server of other tests in this process may have set it
    monkeypatch.delenv("GRPC_SSL_CIPHER_SUITES", raising=False)
    own.sign("client")
    client_ca = {"tls_client_ca": str(own.file)} if checked else {}
    with serving(folders / "question", grpc_port="0", **own.settings(), **client_ca) as (
        _,
        process,
    ):
        port = grpc_port_of(process)
        trusting = context(own, "client")
        trusting.set_alpn_protocols(["h2"])
        assert version_at(port, trusting) == "TLSv1.3"
        trusting.maximum_version = ssl.TLSVersion.TLSv1_2
        assert version_at(port, trusting) == (None if checked else "TLSv1.2")


def version_at(port: int, trusting: ssl.SSLContext) -> str | None:
    """The version that a new connection has; none if the server refuses it."""
    with socket.create_connection(("127.0.0.1", port), 60) as plain:
        try:
            with trusting.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                return connection.version()
        except ssl.SSLError:
            return None


def test_refusals_of_clients_without_a_certificate_have_a_line(
    folders: Path, own: Authority, tmp_path: Path
) -> None:
    cert, key = own.settings()["tls_cert"], own.settings()["tls_key"]
    with json_server(
        tmp_path,
        folders / "question",
        tls_cert=cert,
        tls_key=key,
        tls_client_ca=str(own.file),
        access_log="true",
    ) as (client, server):
        assert client.post("/v1/classify").status_code == 403
        url = f"wss://127.0.0.1:{address(client)[1]}/v1/stream"
        with pytest.raises(InvalidStatus), open_websocket(url, context(own)):
            pass
        until(lambda: len(server.requests) >= 2)
        lines = server.requests
    assert [(line["method"], line["status"], line["error"]) for line in lines] == [
        (method, 403, "client_certificate_required") for method in ("POST", "GET")
    ]
