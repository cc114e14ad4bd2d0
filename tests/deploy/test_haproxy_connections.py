"""Behind HAProxy, the connections of one client leave room for others."""

import re
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import httpx
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from tritonclient.grpc.service_pb2 import ModelInferRequest

from bench.serve.processes import free_port
from sruserve.server.app import Application
from tests.deploy.test_rolling_restart import haproxy
from tests.server.kserve.conftest import grpc_address
from tests.server.kserve.raw_http2 import RawClient, message
from tests.server.observing import until
from tests.server.serving import serve_models

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "deploy/haproxy.cfg").read_text()
ONE_REPLICA = re.sub(r"\n    server (two|three) .*", "", CONFIG)
# Of all clients and of one, instead of the file's 8,000 and 1,000.
ALL, OF_ONE = 60, 20
ANSWERED = re.compile(r'model="entities",outcome="ok",route="/[\w.]+/ModelInfer"} 4')


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
    with balanced(tmp_path, text) as (port, _), ExitStack() as stack:
        lines = [stack.enter_context(silent(port)) for _ in range(ALL)]
        until(lambda: sum(map(is_closed, lines)) == len(lines) - OF_ONE)
        assert answer(port, "127.0.0.9").startswith(b"HTTP/1.1 404")


def test_one_address_takes_its_part_of_grpcs_connections_only(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=ALL) as replica, ExitStack() as stack:
        passed_on = replica.getsockname()[1]
        text = ONE_REPLICA.replace("10.0.0.1:8001", f"127.0.0.1:{passed_on}")
        with balanced(tmp_path, text.replace("track replicas/one", "")) as (_, port):
            lines = [stack.enter_context(silent(port)) for _ in range(ALL)]
            until(lambda: sum(map(is_closed, lines)) == len(lines) - 10)
            until(lambda: accepted(passed_on) == 10)
            stack.enter_context(silent(port, "127.0.0.9"))
            until(lambda: accepted(passed_on) == 11)


def test_a_client_of_grpc_that_reads_nothing_delays_no_other(tmp_path: Path) -> None:
    words = b"ab c " * 8000
    request = ModelInferRequest(model_name="entities")
    request.inputs.add(name="text", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(struct.pack("<I", len(words)) + words)
    with serving_grpc(tmp_path, "entities") as (port, client, _), RawClient(port, 0) as silent_one:
        for _ in range(4):  # their replies fill HAProxy's buffers
            call = silent_one.call("/inference.GRPCInferenceService/ModelInfer")
            send(silent_one, call, message(request.SerializeToString()))
        until(lambda: bool(ANSWERED.search(client.get("/metrics").text)))
        for _ in range(3):
            with connected(port) as channel:
                assert HealthStub(channel).Check(HealthCheckRequest(), timeout=60).status


def test_a_client_of_grpc_has_one_connection_to_a_replica(tmp_path: Path) -> None:
    with serving_grpc(tmp_path, "question-type") as (port, _, replica), ExitStack() as stack:
        assert replica.grpc is not None
        for clients in range(1, 4):
            stub = HealthStub(stack.enter_context(connected(port)))
            calls = [stub.Check.future(HealthCheckRequest(), timeout=60) for _ in range(8)]
            assert all(call.result().status for call in calls)
            assert accepted(replica.grpc.port) == clients


@contextmanager
def serving_grpc(folder: Path, model: str) -> Iterator[tuple[int, httpx.Client, Application]]:
    """A bundled model behind HAProxy; yields HAProxy's port of gRPC, and the replica."""
    with serve_models(ROOT / "sruserve/demo", model, grpc_port=0) as (client, replica):
        text = ONE_REPLICA.replace("10.0.0.1:8000", f"127.0.0.1:{client.base_url.port}")
        text = text.replace("10.0.0.1:8001", grpc_address(replica))
        with balanced(folder, text) as (_, port):
            yield port, client, replica


def connected(port: int) -> grpc.Channel:
    """A channel with a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(f"127.0.0.1:{port}", options=options)


def send(client: RawClient, call: int, data: bytes) -> None:
    """Send the only message of a call, as fast as HAProxy takes it."""
    sent = 0
    while (sent := sent + client.send(call, data[sent:], end=True)) < len(data):
        client.read(0.05)


def accepted(port: int) -> int:
    """How many open connections a port of this machine has."""
    tables = "".join(Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
    return len(re.findall(rf":{port:04X} \S+ 01 ", tables))


def silent(port: int, address: str = "127.0.0.1") -> socket.socket:
    """A connection on which nothing is sent. HAProxy may reset it before it is open."""
    line = socket.socket()
    line.bind((address, 0))
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
