"""Behind HAProxy, the connections of one client leave room for others."""

import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from bench.serve.processes import free_port
from tests.deploy.test_rolling_restart import haproxy
from tests.server.kserve.conftest import grpc_address
from tests.server.observing import until
from tests.server.serving import serve_models

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "deploy/haproxy.cfg").read_text()
# Of all clients and of one, instead of the file's 8,000 and 1,000.
ALL, OF_ONE = 60, 20
CLIENTS = 32


@contextmanager
def balanced(folder: Path, text: str) -> Iterator[list[int]]:
    """HAProxy with a configuration of few connections; yields its ports of HTTP and gRPC."""
    text = text.replace("maxconn 8000", f"maxconn {ALL}")
    chosen = [free_port() for _ in range(3)]
    for port, free in zip((8080, 8081, 8404), chosen, strict=True):
        text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free}")
    text = text.replace("10.0.0.", "127.0.0.").replace("/run/haproxy", str(folder))
    (folder / "haproxy.cfg").write_text(text)
    process = subprocess.Popen([haproxy(), "-f", str(folder / "haproxy.cfg")])
    try:
        until(lambda: listens(chosen[-1]))
        yield chosen[:2]
    finally:
        process.kill()
        process.wait()


def test_one_address_takes_its_part_of_the_connections_only(tmp_path: Path) -> None:
    text = CONFIG.replace("gt 1000", f"gt {OF_ONE}")
    with balanced(tmp_path, text) as ports, ExitStack() as stack:
        lines = [stack.enter_context(silent(port)) for port in ports for _ in range(ALL)]
        until(lambda: sum(map(is_closed, lines)) == len(lines) - OF_ONE)  # of both ports together
        assert answer(ports[0], "127.0.0.9").startswith(b"HTTP/1.1 404")


def test_clients_of_grpc_share_connections_to_a_replica(tmp_path: Path) -> None:
    """Else a replica would close HAProxy's newest connections, and so those of any client."""
    options = [("grpc.use_local_subchannel_pool", 1)]  # each channel has a connection of its own
    one = re.sub(r"\n    server (two|three) .*", "", CONFIG)
    with serve_models(ROOT / "sruserve/demo", "question-type", grpc_port=0) as (client, replica):
        address = grpc_address(replica)
        text = one.replace("10.0.0.1:8000", f"127.0.0.1:{client.base_url.port}")
        text = text.replace("10.0.0.1:8001", address)
        with balanced(tmp_path, text) as (_, port), ExitStack() as stack:
            watches = []
            for _ in range(CLIENTS):
                channel = stack.enter_context(
                    grpc.insecure_channel(f"127.0.0.1:{port}", options=options)
                )
                stub = HealthStub(channel)
                assert stub.Check(HealthCheckRequest(), timeout=60).status
                watches.append(stub.Watch(HealthCheckRequest()))
                with suppress(grpc.RpcError):  # too many of one connection
                    next(watches[-1])
            assert 0 < accepted(int(address.rpartition(":")[2])) < CLIENTS // 2


def accepted(port: int) -> int:
    """How many open connections a port of this machine has."""
    tables = "".join(Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
    return len(re.findall(rf":{port:04X} \S+ 01 ", tables))


def silent(port: int) -> socket.socket:
    """A connection on which nothing is sent. HAProxy may reset it before it is open."""
    line = socket.socket()
    line.setblocking(False)
    line.connect_ex(("127.0.0.1", port))
    return line


def answer(port: int, address: str) -> bytes:
    """What HAProxy itself answers a client that comes from an address."""
    with socket.create_connection(("127.0.0.1", port), 30, source_address=(address, 0)) as line:
        line.sendall(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n")
        return line.recv(100)


def listens(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


def is_closed(line: socket.socket) -> bool:
    """Whether the other side has closed a connection on which nothing was sent."""
    try:
        return line.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
