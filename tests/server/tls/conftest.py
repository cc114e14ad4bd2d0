"""An authority, and a server with a certificate of it that all tests share."""

from collections.abc import Iterator

import httpx
import pytest

from sruserve.server.app import Application
from tests.server.conftest import Serve
from tests.server.tls.authority import Authority
from tests.server.tls.clients import context

Running = tuple[httpx.Client, Application]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    authority.sign("server")
    authority.sign("client")
    return authority


@pytest.fixture(scope="session")
def encrypted(serve: Serve, authority: Authority) -> Iterator[Running]:
    """A server with TLS, and a client that trusts only the authority."""
    names = ("question", "characters")
    with (
        serve(*names, grpc_port=0, **authority.settings()) as (client, application),
        httpx.Client(base_url=client.base_url, verify=context(authority), timeout=60) as trusting,
    ):
        yield trusting, application


@pytest.fixture(scope="session")
def certified(serve: Serve, authority: Authority) -> Iterator[Running]:
    """A server that requires client certificates, and a client without one."""
    settings = authority.settings() | {"tls_client_ca": str(authority.file)}
    with serve("question", grpc_port=0, **settings) as running:
        yield running
