"""A key exchange costs the server little, and what it costs is charged to the turn."""

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from uvicorn.config import Config
from uvicorn.server import ServerState

from sruserve.server.http.connections import Connections
from sruserve.server.http.intake import Intake
from sruserve.server.http.parse_turns import ParseTurns
from sruserve.server.http.tls_handshake import TlsHandshake
from sruserve.server.tls.certificates import Certificates
from sruserve.server.tls.credentials import TlsFiles
from tests.server.kserve.conftest import grpc_address
from tests.server.tls.authority import Authority
from tests.server.tls.clients import address as address_of
from tests.server.tls.clients import context
from tests.server.tls.conftest import Running

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
KEYS = {
    "RSA": rsa.generate_private_key(65537, 2048),
    "P-256": ec.generate_private_key(ec.SECP256R1()),
    "P-384": ec.generate_private_key(ec.SECP384R1()),
    "P-521": ec.generate_private_key(ec.SECP521R1()),
}


@pytest.fixture(params=list(KEYS))
def certificates(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Authority, Certificates]:
    """An authority, and certificates of it for a key of each kind."""
    own = Authority(tmp_path)
    own.sign(key=KEYS[request.param])
    return own, Certificates(TlsFiles(tmp_path / "server.pem", tmp_path / "server.key"))


@pytest.mark.parametrize("group", ["ffdhe2048", "ffdhe8192"])
def test_a_group_whose_key_exchange_is_slow_is_refused(
    encrypted: Running, authority: Authority, group: str
) -> None:
    trusting = context(authority)
    trusting.set_alpn_protocols(["http/1.1", "h2"])
    trusting.set_ecdh_curve(group)
    host, grpc_port = grpc_address(encrypted[1]).split(":")
    for address in (address_of(encrypted[0]), (host, int(grpc_port))):
        with (
            socket.create_connection(address, 60) as connection,
            pytest.raises(ssl.SSLError, match=r"HANDSHAKE_FAILURE|EOF"),
        ):
            trusting.wrap_socket(connection, server_hostname="127.0.0.1")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """The client's end of a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = server.wrap_bio(to_server, to_client, server_side=True)
    here = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    for _ in range(4):
        for end in (here, there):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert here.cipher() is not None
    return here


@pytest.mark.parametrize("version", VERSIONS)
def test_clients_agree_on_a_cheap_group_whatever_the_key_of_the_certificate(
    certificates: tuple[Authority, Certificates], version: ssl.TLSVersion
) -> None:
    trusting = context(certificates[0])
    trusting.minimum_version = trusting.maximum_version = version
    agreed = handshake(certificates[1].context, trusting)
    assert agreed.version() == version.name.replace("_", ".")


@pytest.mark.parametrize("certificates", ["RSA"], indirect=True)
def test_ciphers_with_finite_fields_are_refused_over_tls_1_2(
    certificates: tuple[Authority, Certificates],
) -> None:
    trusting = context(certificates[0])
    trusting.maximum_version = ssl.TLSVersion.TLSv1_2
    trusting.set_ciphers("DHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES256-GCM-SHA384")
    with pytest.raises(ssl.SSLError, match="NO_SHARED_CIPHER"):
        handshake(certificates[1].context, trusting)


class RecordedTurns(ParseTurns):
    """Turns that record what each charge leaves of the budget."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[int] = []

    def spend(self, cost: int, owner: Any) -> None:
        super().spend(cost, owner)
        self.left.append(self.budget)


@pytest.mark.parametrize(("milliseconds", "uses_up"), [(0, False), (1, False), (80, True)])
@pytest.mark.parametrize("certificates", ["P-256"], indirect=True)
def test_a_flight_is_charged_for_its_processor_time(
    certificates: tuple[Authority, Certificates], milliseconds: int, uses_up: bool
) -> None:
    seconds = [0.0]

    def clock() -> float:
        """Each flight takes the same time."""
        seconds[0] += milliseconds / 1000
        return seconds[0]

    async def left_by_a_hello() -> int:
        intake = Intake(1 << 20, 10, 1 << 20, 1 << 20)
        turns = intake.turns = RecordedTurns()
        state = {
            "intake": intake,
            "connections": Connections(8),
            "certificates": certificates[1],
        }
        config, loop = Config(app=None, log_config=None), asyncio.get_running_loop()  # type: ignore[arg-type]
        server = await loop.create_server(
            lambda: TlsHandshake(config, ServerState(), state, cpu_clock=clock),
            sock=socket.create_server(("127.0.0.1", 0)),
        )
        address = server.sockets[0].getsockname()
        _, writer = await asyncio.open_connection(
            *address, ssl=context(certificates[0]), server_hostname="127.0.0.1"
        )
        writer.transport.abort()
        server.close()
        return turns.left[0]

    assert (asyncio.run(left_by_a_hello()) <= 0) == uses_up
