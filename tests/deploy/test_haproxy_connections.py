"""Behind HAProxy, the connections of one address leave room for other clients."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.serve.processes import free_port
from tests.deploy.test_rolling_restart import haproxy
from tests.server.observing import until

CONFIG = (Path(__file__).parents[2] / "deploy/haproxy.cfg").read_text()
# Of all clients and of one, instead of the file's 8,000 and 1,000.
ALL, OF_ONE = 60, 20


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[list[int]]:
    """Of HTTP and gRPC, where HAProxy listens without replicas."""
    text = CONFIG.replace("maxconn 8000", f"maxconn {ALL}").replace("gt 1000", f"gt {OF_ONE}")
    chosen = [free_port() for _ in range(3)]
    for port, free in zip((8080, 8081, 8404), chosen, strict=True):
        text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free}")
    text = text.replace("10.0.0.", "127.0.0.").replace("/run/haproxy", str(tmp_path))
    (tmp_path / "haproxy.cfg").write_text(text)
    process = subprocess.Popen([haproxy(), "-f", str(tmp_path / "haproxy.cfg")])
    try:
        until(lambda: listens(chosen[-1]))
        yield chosen[:2]
    finally:
        process.kill()
        process.wait()


def test_one_address_takes_its_part_of_the_connections_only(ports: list[int]) -> None:
    with ExitStack() as stack:
        lines = [stack.enter_context(silent(port)) for port in ports for _ in range(ALL)]
        until(lambda: sum(map(is_closed, lines)) == len(lines) - OF_ONE)  # of both ports together
        assert answer(ports[0], "127.0.0.9").startswith(b"HTTP/1.1 404")


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
