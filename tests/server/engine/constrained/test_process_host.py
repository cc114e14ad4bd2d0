"""The helper that starts the processes of grammars: it is replaced when it ends or hangs."""

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from sruserve.server.engine.constrained.process_client import Bounds
from sruserve.server.engine.constrained.process_host import START_SECONDS
from sruserve.server.errors import (
    Overloaded,
)
from tests.server.engine.constrained.grammar_processes import Grammars, begun, is_gone, run
from tests.server.observing import until


def test_a_helper_is_not_blamed_for_those_who_leave_before_a_process_is_there(
    grammars: Grammars,
) -> None:
    grammars.regex("a")
    helper = grammars.host.pid
    assert helper is not None

    async def leave() -> None:
        os.kill(helper, signal.SIGSTOP)  # it is slow for a while
        try:
            starting = asyncio.create_task(grammars.start(Bounds()))
            while not grammars.host.starting:
                await asyncio.sleep(0)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
        finally:
            os.kill(helper, signal.SIGCONT)
        while grammars.host.starting:
            await asyncio.sleep(0.01)

    run(leave())
    assert len(grammars.memory) == 0
    grammars.clock.now += START_SECONDS + 1
    grammars.regex("b")
    assert grammars.host.pid == helper


def test_a_process_makes_way_for_the_server(grammars: Grammars) -> None:
    constraint = grammars.regex("a*")
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, constraint.process.pid) == min(own + 5, 19)


def test_a_process_has_none_of_the_servers_secrets_and_sockets(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SRUSERVE_STATE_KEYS", "secret")
    other = Grammars()
    constraint = other.regex("a")
    helper = other.host.pid
    assert helper is not None
    for pid, sockets in ((helper, 1), (constraint.process.pid, 1)):
        process = psutil.Process(pid)
        assert not [name for name in process.environ() if name.startswith("SRUSERVE")]
        links = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
        assert sum(link.startswith("socket:") for link in links) == sockets
        assert process.num_threads() == 1
        assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
    other.host.close()
    until(lambda: is_gone(helper))


def test_a_helper_that_was_killed_is_replaced(grammars: Grammars) -> None:
    constraint = grammars.regex("a+")
    helper = grammars.host.pid
    assert helper is not None
    os.kill(helper, signal.SIGKILL)
    until(lambda: is_gone(helper))
    assert begun(constraint).advance(97)  # what it has started goes on
    assert begun(grammars.regex("b+")).advance(98)
    assert grammars.host.pid != helper


def test_a_process_for_which_no_descriptor_is_left_is_refused_as_overload(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def ask() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socketpair", none_left)
            with pytest.raises(Overloaded, match="retry"):
                await grammars.make("regex", "a+")

    run(ask())
    assert begun(grammars.regex("a+")).advance(97)


def test_a_helper_that_hangs_is_replaced(grammars: Grammars) -> None:
    grammars.regex("a+")
    helper = grammars.host.pid
    assert helper is not None

    async def leave() -> None:
        making = asyncio.create_task(grammars.make("regex", "b+"))
        while not grammars.host.starting:
            await asyncio.sleep(0)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making

    for _ in range(2):
        os.kill(helper, signal.SIGSTOP)
        run(leave())
        grammars.clock.now += START_SECONDS
        os.kill(helper, signal.SIGCONT)
        assert begun(grammars.regex("b+")).advance(98)
        assert grammars.host.pid == helper, "it did not hang for long"
    os.kill(helper, signal.SIGSTOP)
    run(leave())
    grammars.clock.now += START_SECONDS + 1
    assert begun(grammars.regex("b+")).advance(98)
    assert grammars.host.pid != helper
    until(lambda: is_gone(helper))


def test_a_helper_that_hangs_is_ended_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Grammars()
    other.regex("a")
    helper = other.host.pid
    assert helper is not None
    os.kill(helper, signal.SIGSTOP)
    here, waited = threading.current_thread(), list[threading.Thread]()
    wait = subprocess.Popen.wait

    def waits(self: "subprocess.Popen[bytes]", timeout: float | None = None) -> int:
        waited.append(threading.current_thread())
        return wait(self, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", waits)
    other.host.close()
    until(lambda: is_gone(helper) and bool(waited))
    assert here not in waited


CODE = """
import asyncio, os, signal
from sruserve.server.engine.constrained.process_client import *
from sruserve.server.engine.constrained.process_host import GrammarHost
from sruserve.server.engine.constrained.memory_budget import GrammarMemory

async def start():
    host = GrammarHost()
    process = GrammarProcess(host, await host.fork(), GrammarMemory(1 << 30), Bounds())
    await process.start()
    await process.compile("regex", "a", ByteVocabulary.of_values(b"a"))
    return host, process

host, process = asyncio.run(start())
print(host.pid, process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_all_processes_end_with_a_server_that_is_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True, timeout=300, check=False
    )
    assert done.returncode == -signal.SIGKILL
    helper, process = map(int, done.stdout.split())
    until(lambda: is_gone(helper) and is_gone(process))
