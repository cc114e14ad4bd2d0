"""The server as a process: start, several workers, signals, restarts, and failures in one line."""

import asyncio
import fcntl
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import termios
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import psutil
import pytest
import uvloop

from sruserve.server.kernel_buffers import limit_buffers
from sruserve.server.run import _accepting, _bind
from tests.server.http.json_requests import connect
from tests.server.kserve.raw_http2 import RawClient
from tests.server.observing import until
from tests.server.ports import free_port
from tests.server.processes import (
    COMPLETE,
    SRUSERVE,
    Process,
    complete,
    ended,
    grpc_port_of,
    is_ready,
    limited,
    preloaded,
    ready,
    serving,
    start,
)
from tests.server.slow_server import PATIENT_SERVER, slow_server

KEY = "c" * 64


# Says at its end whether a further Ctrl-C would still change the exit code, and whether garbage was
# collected while torch was imported, and after the server was ready.
SAYING = """
import atexit, gc, signal, sys
from sruserve.cli import main
atexit.register(lambda: print("ignored:", signal.getsignal(signal.SIGINT) is signal.SIG_IGN))
collected = set()
def note(phase, _):
    if "torch" in sys.modules:
        collected.add("later" if "sruserve.server.lifecycle" in sys.modules else "at import")
gc.callbacks.append(note)
atexit.register(lambda: print("collected:", *sorted(collected), gc.isenabled()))
main()
"""


def test_the_kernel_takes_little_of_a_reply_that_nobody_reads() -> None:
    with _bind("127.0.0.1", 0) as listener, socket.socket() as client:
        listener.listen()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(listener.getsockname())
        connection, _ = listener.accept()
        with connection:
            connection.setblocking(False)
            assert connection.send(bytes(1 << 20)) < 64 << 10


def test_the_kernel_takes_little_that_nobody_reads_of_a_client_that_has_sent_much() -> None:
    with _bind("127.0.0.1", 0) as listener, socket.socket() as client:
        listener.listen()
        client.connect(listener.getsockname())
        client.setblocking(False)
        connection, _ = listener.accept()
        with connection:
            received = 0
            while received < 4 << 20:  # a receive buffer grows with what is read
                with suppress(BlockingIOError):
                    client.send(bytes(1 << 20))
                received += len(connection.recv(1 << 20))
            client.setblocking(True)
            client.settimeout(0.2)
            with suppress(TimeoutError):
                while True:
                    client.send(bytes(1 << 20))
            unread = fcntl.ioctl(connection, termios.FIONREAD, bytes(4))
            assert int.from_bytes(unread, sys.byteorder) < 256 << 10


@pytest.mark.parametrize(("workers", "max_turns"), [(1, 20), (2, 70)])
def test_connections_that_wait_are_accepted_together_unless_workers_share_them(
    workers: int, max_turns: int
) -> None:
    async def turns_until_accepted(listeners: list[socket.socket], count: int) -> int:
        accepted: list[asyncio.BaseTransport] = []
        turns = 0

        class Accepted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                accepted.append(transport)

        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(Accepted, sock=each) for each in listeners]
        while len(accepted) < count:
            await asyncio.sleep(0)
            turns += 1
        for transport in accepted:
            transport.close()
        for server in servers:
            server.close()
            await server.wait_closed()
        return turns

    with ExitStack() as opened:
        listener = opened.enter_context(_bind("127.0.0.1", 0))
        listener.listen(64)
        for _ in range(64):
            opened.enter_context(socket.create_connection(listener.getsockname()))
        turns = uvloop.run(turns_until_accepted(_accepting(listener, workers), 64))
    assert max_turns // 4 < turns <= max_turns


def test_a_kernel_without_that_limit_serves_all_the_same() -> None:
    with _bind("127.0.0.1", 0) as listener:
        limit_buffers(listener, unsent_option=9999)
        listener.listen()


def test_a_second_ctrl_c_does_not_change_how_a_stop_ends_and_imports_collect_no_garbage(
    folders: Path,
) -> None:
    process = start(str(folders / "question"), program=("-c", SAYING))
    assert process.stdout is not None
    while "ready to serve" not in (line := process.stdout.readline()):
        assert line, "the server ended before it was ready"
    process.send_signal(signal.SIGINT)
    output = ended(process)
    assert "ignored: True" in output
    assert "collected: later True" in output


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=["SIGTERM", "Ctrl-C", "SIGHUP"]
)
def test_a_signal_stops_an_idle_server_at_once_and_cleanly(folders: Path, number: int) -> None:
    with serving(folders / "characters", drain_seconds="600") as (client, process):
        assert client.get("/livez").status_code == 200
        process.send_signal(number)
        ended(process)


@pytest.mark.parametrize("closed", ["0<&- 1>&- 2>&-", "1>&-"])
def test_a_server_without_standard_streams_stops_cleanly(folders: Path, closed: str) -> None:
    port = free_port()
    command = [sys.executable, "-m", "sruserve", "serve", str(folders / "characters")]
    process = subprocess.Popen(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command, "--port", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"SRUSERVE_GRPC_PORT": "off"},
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            until(lambda: is_ready(client), 300)
        for number in range(3):
            assert os.readlink(f"/proc/{process.pid}/fd/{number}") == os.devnull
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(60)


# A server whose models take long to load, in threads that cannot be interrupted.
LOADING = """
import time
from sruserve.cli import main
from sruserve.server.engine.model_runner import ModelRunner
def warm_up(*_):
    print("begun", flush=True)
    time.sleep(600)
ModelRunner.warm_up = warm_up
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_models_are_loaded_stops_at_once(folders: Path, number: int) -> None:
    process = preloaded(str(folders / "characters"), program=("-c", LOADING))
    try:
        assert process.stdout is not None
        line = ""
        while "begun" not in line:
            line = process.stdout.readline()
            assert line, "it ended by itself"
        process.send_signal(number)
        rest = ended(process)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "stopped before any request was served" in rest
    assert "Traceback" not in rest


NOHUP = """
import signal
from sruserve.cli import main
signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does; processes inherit it
main()
"""


def test_a_hang_up_that_is_ignored_stops_nothing(folders: Path) -> None:
    with serving(folders / "characters", program=("-c", NOHUP)) as (client, process):
        process.send_signal(signal.SIGHUP)
        assert complete(client, prompt="a", max_tokens=1)["finish_reason"] == "length"
        process.send_signal(signal.SIGTERM)
        ended(process)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_finishes_what_runs_and_refuses_what_is_new(
    folders: Path, tmp_path: Path, number: int
) -> None:
    body = {"prompt": "To be", "max_tokens": 10_000, "seed": 1, "stream": True}
    program, slow = slow_server(tmp_path)
    settings = {"drain_seconds": "600"}
    with serving(folders / "characters", program=program, **settings) as (client, process):
        connection = connect(client, COMPLETE, body)
        begun = connection.recv(4096)
        process.send_signal(number)
        with httpx.Client(base_url=client.base_url, timeout=60) as other:
            until(lambda: other.get("/readyz").status_code == 503)
            reply = other.post(COMPLETE, json={"prompt": "a"})
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "draining")
            assert reply.headers["retry-after"]
            assert other.get("/livez").status_code == 200
        slow.unlink()
        received = [begun]
        while received[-1]:
            received.append(connection.recv(1 << 20))
        connection.close()
        text = b"".join(received).decode()
        assert '"finish_reason":"length"' in text
        assert "data: [DONE]" in text
        ended(process)


def test_a_second_ctrl_c_does_not_wait_and_still_hands_states_back(
    folders: Path, tmp_path: Path
) -> None:
    body = {"prompt": "To be", "max_tokens": 100_000, "stream": True, "return_state": True}
    program, _ = slow_server(tmp_path)
    settings = {"drain_seconds": "600"}
    with (
        serving(folders / "characters", program=program, **settings) as (client, process),
        client.stream("POST", COMPLETE, json=body) as reply,
    ):
        lines = reply.iter_lines()
        next(lines)
        process.send_signal(signal.SIGINT)
        with httpx.Client(base_url=client.base_url, timeout=60) as other:
            until(lambda: other.get("/readyz").status_code == 503)
        process.send_signal(signal.SIGINT)
        *_, last, done = (line for line in lines if line)
        choice = json.loads(last.removeprefix("data: "))["choices"][0]
        assert (choice["stop_reason"], done) == ("draining", "data: [DONE]")
        assert choice["state"]
        output = ended(process)
        assert "ERROR" not in output


def test_a_request_that_does_not_finish_in_time_gets_an_error_that_says_so(
    folders: Path, tmp_path: Path
) -> None:
    body = {"prompt": "To be", "max_tokens": 100_000, "stream": True}
    program, _ = slow_server(tmp_path)
    settings = {"drain_seconds": "1"}
    with serving(folders / "characters", program=program, **settings) as (client, process):
        with client.stream("POST", COMPLETE, json=body) as reply:
            lines = reply.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            events = [line for line in lines if line.startswith("data: ")]
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "draining"
        ended(process)


def test_a_state_survives_a_restart_with_the_same_key_and_only_that(
    folders: Path, client: httpx.Client
) -> None:
    model = folders / "characters"
    with serving(model, state_keys=KEY) as (before, _):
        whole = complete(before, prompt="To be", max_tokens=40, seed=2, return_state=True)["text"]
        first = complete(before, prompt="To be", max_tokens=15, seed=2, return_state=True)
    body = {"prompt": "", "state": first["state"], "max_tokens": 25, "return_state": True}
    with serving(model, state_keys=f"{'d' * 64},{KEY}") as (after, _):
        assert first["text"] + complete(after, **body)["text"] == whole
    reply = client.post(COMPLETE, json=body | {"model": "characters"})  # it has another key
    assert reply.json()["error"]["code"] == "state_unknown_key"


def test_any_worker_continues_what_any_other_began_and_metrics_are_of_all(folders: Path) -> None:
    with ready(start(str(folders / "characters"), workers="2")) as (client, process):
        whole = complete(client, prompt="To be", max_tokens=40, seed=3, return_state=True)["text"]
        served: set[int] = set()
        done = 0
        while len(served) < 2 or done < 10:  # a new connection each time: both get some
            done += 1
            assert done < 500, "all requests went to one worker"
            with httpx.Client(base_url=client.base_url, timeout=60) as one:
                first = one.post(
                    COMPLETE,
                    json={"prompt": "To be", "max_tokens": 15, "seed": 3, "return_state": True},
                )
                served.add(worker_of(first, process))
                state = first.json()["choices"][0]["state"]
            with httpx.Client(base_url=client.base_url, timeout=60) as two:
                rest = complete(two, prompt="", state=state, max_tokens=25, return_state=True)
            assert first.json()["choices"][0]["text"] + rest["text"] == whole
        labels = 'model="characters",outcome="ok",route="/v1/completions"'
        counted = f"sru_requests_total{{{labels}}} {1 + 2 * done}.0"
        idle = 'sru_running{model="characters"} 0.0'
        # A reply is read before it is counted.
        until(lambda: {counted, idle} <= set(client.get("/metrics").text.splitlines()))
        process.send_signal(signal.SIGTERM)
        ended(process)


def workers_of(process: Process) -> list[psutil.Process]:
    """The living workers of a supervisor."""

    def serves(child: psutil.Process) -> bool:
        try:
            living = child.status() != psutil.STATUS_ZOMBIE
            return living and "resource_tracker" not in " ".join(child.cmdline())
        except psutil.NoSuchProcess:  # it ended since it was listed
            return False

    return [child for child in psutil.Process(process.pid).children() if serves(child)]


def worker_of(reply: httpx.Response, process: Process) -> int:
    """The process id of the worker whose connection a reply came over, which is still open."""
    port: int = reply.extensions["network_stream"].get_extra_info("client_addr")[1]
    (worker,) = [
        worker
        for worker in workers_of(process)
        for connection in worker.net_connections("tcp")
        if connection.raddr and connection.raddr.port == port
    ]
    return int(worker.pid)


def start_time(exported: str) -> float:
    """When the server started, as `/metrics` says."""
    match = re.search(r"^sru_start_time_seconds (\S+)$", exported, re.MULTILINE)
    assert match is not None
    return float(match[1])


def memory_by_worker(client: httpx.Client) -> dict[int, float]:
    """The resident bytes of each worker by its process id, as `/metrics` says."""
    exported = client.get("/metrics").text
    pairs = re.findall(r'^sru_worker_memory_bytes{worker="(\d+)"} (\S+)$', exported, re.MULTILINE)
    return {int(pid): float(memory) for pid, memory in pairs}


def test_a_worker_that_dies_is_replaced_and_what_it_counted_stays(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serving(folders / "characters", workers="2") as (client, process):
        until(lambda: len(workers_of(process)) == 2)
        for _ in range(20):
            with httpx.Client(base_url=client.base_url, timeout=60) as one:
                complete(one, prompt="a", max_tokens=2)
        counted = 'sru_requests_total{model="characters",outcome="ok",route="/v1/completions"} 20.0'
        until(lambda: counted in client.get("/metrics").text)
        exported = client.get("/metrics").text
        assert "sru_worker_restarts_total 0.0" in exported
        assert f'sru_worker_memory_bytes{{worker="{workers_of(process)[0].pid}"}}' in exported
        assert abs(start_time(exported) - psutil.Process(process.pid).create_time()) < 60
        until(lambda: set(memory_by_worker(client)) == {w.pid for w in workers_of(process)})
        (folder,) = tmp_path.iterdir()
        max_files = len(list(folder.glob("*.db"))) + 2
        victim = workers_of(process)[0]
        victim.kill()
        until(lambda: len({w.pid for w in workers_of(process)} - {victim.pid}) == 2, 60)
        until(lambda: "sru_worker_restarts_total 1.0" in client.get("/metrics").text)
        until(lambda: set(memory_by_worker(client)) == {w.pid for w in workers_of(process)})
        assert all(memory > 50 << 20 for memory in memory_by_worker(client).values())
        again = client.get("/metrics").text
        assert counted in again
        assert start_time(again) == start_time(exported), "the server did not start again"
        assert len(list(folder.glob("*.db"))) <= max_files
        assert complete(client, prompt="a", max_tokens=2)["finish_reason"] == "length"
        process.send_signal(signal.SIGINT)
        ended(process)


@pytest.mark.parametrize("gone", [False, True], ids=["full", "gone"])
def test_workers_without_room_for_metrics_serve_and_are_replaced(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    program = SRUSERVE if gone else limited(resource.RLIMIT_FSIZE, 8 << 10)
    with serving(folders / "characters", program=program, workers="2") as (client, process):
        (folder,) = tmp_path.iterdir()
        if gone:
            shutil.rmtree(folder)
        until(lambda: len(workers_of(process)) == 2)
        victim, other = workers_of(process)
        victim.kill()
        until(lambda: len({w.pid for w in workers_of(process)} - {victim.pid}) == 2, 60)
        other.kill()  # so the new worker alone answers, once it is ready
        until(lambda: is_ready(client), 300)
        assert complete(client, prompt="a", max_tokens=2)["finish_reason"] == "length"
        if not gone:
            assert client.get("/metrics").is_success
        process.send_signal(signal.SIGTERM)
        output = ended(process)
    assert "metrics cannot be written" in output


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A model folder whose model cannot be loaded."""
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_failures_to_start_are_one_line_and_an_exit_code(folders: Path, broken: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        taken_port = f"port {port}: Address already in use; set another port by --port or SRUSERVE"
        for arguments, settings, code, message in (
            ((str(folders / "question"),), {"port": port}, 1, taken_port),
            ((str(broken.parent),), {}, 2, "not a model folder, but holds model folders: broken"),
            ((str(broken),), {}, 1, "broken"),
            ((), {"port": "x"}, 2, "SRUSERVE_PORT"),
        ):
            says_why_it_ends(preloaded(*arguments, **settings), code, message)


def test_workers_that_cannot_start_end_the_server(broken: Path) -> None:
    says_why_it_ends(preloaded(str(broken), workers="2"), 1, "broken")


def says_why_it_ends(process: Process, code: int, message: str) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == code, output
    assert message in output
    assert "Traceback" not in output
    return output


def test_the_access_log_names_requests_and_no_content(folders: Path) -> None:
    settings = {"access_log": "true"}
    with serving(folders / "characters", program=PATIENT_SERVER, **settings) as (client, process):
        complete(client, prompt="a secret prompt", max_tokens=1)
        assert client.get("/secret?api_key=a-secret-key&token=x").status_code == 404
        process.send_signal(signal.SIGTERM)
        output = ended(process)
    assert "INFO sruserve.requests: POST /v1/completions 200 ok characters " in output
    assert "INFO sruserve.requests: GET none 404 route_not_found unknown " in output
    assert "secret" not in output


def test_workers_end_when_their_supervisor_is_killed_and_leave_no_files(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serving(folders / "characters", workers="2") as (_, process):
        workers = psutil.Process(process.pid).children()
        assert list(tmp_path.iterdir())
        process.kill()
        _, alive = psutil.wait_procs(workers, timeout=60)
        assert not alive
        until(lambda: not list(tmp_path.iterdir()))


def test_sigterm_while_a_body_is_unfinished_leaves_no_traceback(folders: Path) -> None:
    with serving(folders / "characters", drain_seconds="0") as (client, process):
        address = (client.base_url.host, client.base_url.port or 0)
        with socket.create_connection(address) as connection:
            connection.sendall(b"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
            client.get("/livez")  # what came before it is read by now
            process.send_signal(signal.SIGTERM)
            ended(process)


def test_a_host_that_cannot_be_ends_in_one_line(folders: Path) -> None:
    for host in ("no-such-host.invalid", "a" * 70, "1:2", "\udcff\udcfe"):
        process = preloaded(str(folders / "characters"), host=host)
        assert says_why_it_ends(process, 2, "SRUSERVE_HOST").count("\n") == 1


def test_a_host_that_gives_no_whole_address_is_the_same_for_all_protocols(folders: Path) -> None:
    with serving(folders / "characters", host="127.1", grpc_port="0") as (client, process):
        assert client.base_url.host == "127.0.0.1"
        process.send_signal(signal.SIGTERM)
        assert "gRPC is on 127.0.0.1 port" in ended(process)


def test_a_server_with_few_descriptors_answers_probes_among_silent_clients(folders: Path) -> None:
    program = limited(resource.RLIMIT_NOFILE, 256)
    with (
        serving(folders / "characters", program=program) as (client, process),
        ExitStack() as stack,
    ):
        assert process.stdout is not None
        warning = process.stdout.readline()
        assert "the limit of open files is 256, so a worker accepts 192 connections" in warning
        address = (client.base_url.host, client.base_url.port or 0)
        for _ in range(400):
            stack.enter_context(socket.create_connection(address))
        for _ in range(3):
            with httpx.Client(base_url=client.base_url, timeout=60) as other:
                assert other.get("/readyz").status_code == 200
                assert complete(other, prompt="a", max_tokens=1)["finish_reason"] == "length"
        process.send_signal(signal.SIGTERM)
        assert ended(process).count("to raise the limit, raise SRUSERVE_MAX_CONNECTIONS") == 1


def test_calls_with_headers_that_cannot_be_write_no_log(folders: Path) -> None:
    with serving(folders / "characters", grpc_port="0") as (_, process):
        with RawClient(grpc_port_of(process)) as client:
            for _ in range(3):
                call = client.call("/inference.GRPCInferenceService/ServerLive", grpc_timeout="zz")
                client.until(lambda call=call: call in client.ended)  # type: ignore[misc]
        process.send_signal(signal.SIGTERM)
        assert "hpack" not in ended(process)
