"""HAProxy reaches replicas with TLS by the lines that deploy/haproxy.cfg has in comments."""

import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import pytest
from tritonclient.grpc.service_pb2 import ServerLiveRequest
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from bench.serve.processes import free_port
from tests.deploy.test_rolling_restart import haproxy
from tests.server.observing import until
from tests.server.processes import grpc_port_of, serving
from tests.server.tls.authority import Authority

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "deploy/haproxy.cfg").read_text()
PAGE = (ROOT / "docs/operations.md").read_text()
LINES = re.compile(r"^( +)# (default-server ssl .*)$", re.MULTILINE)
NAME = "models.example.com"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("tls"))
    authority.sign(NAME)
    authority.sign("haproxy")
    both = [(authority.folder / f"haproxy.{kind}").read_text() for kind in ("pem", "key")]
    (authority.folder / "both.pem").write_text("".join(both))
    return authority


@pytest.fixture(scope="module")
def ports(authority: Authority) -> Iterator[tuple[int, int]]:
    """Those of a server that wants certificates: HTTP and gRPC."""
    haproxy()
    grpc_port = free_port()
    settings = authority.settings(NAME) | {"tls_client_ca": str(authority.file)}
    with serving(grpc_port=str(grpc_port), **settings) as (client, process):
        assert client.base_url.port
        yield client.base_url.port, grpc_port_of(process)


@contextmanager
def balanced(
    folder: Path,
    authority: Authority,
    ports: tuple[int, int],
    name: str = NAME,
    bind: str = "",
    silent: str = "",
) -> Iterator[tuple[int, int]]:
    """HAProxy before the server, three times the same; yields its ports of HTTP and gRPC.

    bind: further words for the port of HTTP. silent: the address of gRPC at which nothing listens.
    """
    own = free_port(), free_port()
    text = CONFIG.replace(silent, f"127.0.0.1:{free_port()}") if silent else CONFIG
    for here, there, mine in zip((8000, 8001), ports, own, strict=True):
        text = re.sub(rf"10\.0\.0\.\d:{here}", f"127.0.0.1:{there}", text)
        text = text.replace(f"127.0.0.1:{here + 80}", f"127.0.0.1:{mine}")
    text = text.replace(f"bind 127.0.0.1:{own[0]}", f"bind 127.0.0.1:{own[0]} {bind}")
    text = text.replace("127.0.0.1:8404", f"127.0.0.1:{free_port()}")
    text = text.replace("/run/haproxy", str(folder))
    text, lines = LINES.subn(rf"\1\2 crt {authority.folder / 'both.pem'}", text)
    assert lines == 2
    text = text.replace("/etc/haproxy/ca.pem", str(authority.file)).replace(NAME, name)
    (folder / "haproxy.cfg").write_text(text)
    process = subprocess.Popen([haproxy(), "-f", str(folder / "haproxy.cfg")])
    try:
        until(lambda: listens(own[0]))
        yield own
    finally:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def is_live(port: int) -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        reply = GRPCInferenceServiceStub(channel).ServerLive(ServerLiveRequest(), timeout=30)
        return bool(reply.live)


def test_requests_of_http_and_grpc_reach_replicas_with_tls(
    tmp_path: Path, authority: Authority, ports: tuple[int, int]
) -> None:
    with balanced(tmp_path, authority, ports) as (http_port, grpc_port):
        assert httpx.get(f"http://127.0.0.1:{http_port}/v1/models").status_code == 200
        assert is_live(grpc_port)


def test_a_call_goes_to_another_replica_if_one_does_not_listen_for_grpc_yet(
    tmp_path: Path, authority: Authority, ports: tuple[int, int]
) -> None:
    with balanced(tmp_path, authority, ports, silent="10.0.0.2:8001") as (_, grpc_port):
        assert all(is_live(grpc_port) for _ in range(6))


def test_the_request_that_watches_a_restart_is_answered_as_the_docs_have_it(
    tmp_path: Path, authority: Authority, ports: tuple[int, int]
) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs the system package curl (apt-get install curl)")
    (line,) = re.findall(r"^  (curl .*) \|\| date$", PAGE, re.MULTILINE)
    assert 'Bearer $KEY"' in line
    with balanced(tmp_path, authority, ports) as (http_port, _):
        names = {"URL": f"http://127.0.0.1:{http_port}", "KEY": "a-key"}
        command = ("bash", "-c", line)
        run = subprocess.run(
            command, env=os.environ | names, capture_output=True, text=True, check=False
        )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    "path",
    ["/metrics", "/%6Detrics", "/v2/repository/models/m/load", "/v2/reposit%6Fry/models/m/unload"],
)
def test_what_is_for_one_replica_alone_does_not_pass_haproxy(
    path: str, tmp_path: Path, authority: Authority, ports: tuple[int, int]
) -> None:
    with balanced(tmp_path, authority, ports) as (http_port, _):
        reply = httpx.post(f"http://127.0.0.1:{http_port}{path}")
    assert reply.status_code == 404
    assert "x-replica" not in reply.headers, "a replica answered"


def test_haproxy_wants_certificates_of_clients_by_the_words_of_the_docs(
    tmp_path: Path, authority: Authority, ports: tuple[int, int]
) -> None:
    words = "ssl crt FILE verify required ca-file FILE"
    assert f"`bind :443 {words}`" in CONFIG
    both, authorities = authority.folder / "both.pem", authority.file
    words = words.replace("FILE", str(both), 1).replace("FILE", str(authorities))
    context = ssl.create_default_context(cafile=str(authorities))
    context.check_hostname = False
    with balanced(tmp_path, authority, ports, bind=words) as (http_port, _):
        address = f"https://127.0.0.1:{http_port}/v1/models"
        with pytest.raises(httpx.TransportError):
            httpx.get(address, verify=context)
        context.load_cert_chain(both)
        until(lambda: httpx.get(address, verify=context).status_code == 200)


def test_a_replica_whose_certificate_has_another_name_gets_no_request(
    tmp_path: Path, authority: Authority, ports: tuple[int, int]
) -> None:
    with balanced(tmp_path, authority, ports, "other.example.com") as (http_port, grpc_port):
        address = f"http://127.0.0.1:{http_port}/v1/models"
        until(lambda: httpx.get(address).status_code == 503)
        with pytest.raises(grpc.RpcError) as refused:
            is_live(grpc_port)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
