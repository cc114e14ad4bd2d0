"""Preloaded processes behave as those that a test starts itself."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.preloaded import Preloaded, run
from tests.server.observing import until

ABOUT_ITSELF = """
import json, os, signal, sys, threading
print(json.dumps([
    sys.argv, os.getcwd(), sorted(os.environ), sys.stdin.read(), sys.path[0], __name__,
    sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__,
    sorted(os.listdir("/proc/self/fd"))[:-1], threading.active_count(),
    [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)],
]))
print("last words", file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.parametrize("kind", ["program", "module", "file"])
def test_a_process_is_as_one_that_was_started(tmp_path: Path, kind: str) -> None:
    (tmp_path / "about.py").write_text(ABOUT_ITSELF)
    first = {
        "program": ("-c", ABOUT_ITSELF),
        "module": ("-m", "about"),
        "file": (str(tmp_path / "about.py"),),
    }[kind]
    arguments = (*first, "one", "")
    environment = {"GOMP_SPINCOUNT": "1000", "OF_ITS_OWN": "\udcff", "PATH": os.environ["PATH"]}
    started = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=tmp_path,
        input="given",
        capture_output=True,
        text=True,
    )
    forked = run(*arguments, environment=environment, folder=tmp_path, text="given")
    assert forked.stderr == started.stderr == "last words\n"
    assert forked.returncode == started.returncode == 3
    output = forked.stdout.replace('"LC_CTYPE", ', "")
    if kind == "module":  # which the interpreter names by its path
        output = output.replace('[["-m"', f'[["{tmp_path}/about.py"')
    assert output == started.stdout.replace('"LC_CTYPE", ', "")


def test_what_it_raises_is_told_and_is_its_exit_code() -> None:
    done = run("-c", "raise ValueError('of its own')")
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: of its own\n")


def test_torch_and_the_server_are_there() -> None:
    done = run("-c", "import sys; print({'torch', 'sruserve.server.app'} <= sys.modules.keys())")
    assert done.stdout == "True\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_it_and_is_its_exit_code(number: int) -> None:
    program = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
    process = Preloaded.reading("-c", program, environment=os.environ)
    other = Preloaded.reading("-c", program, environment=os.environ)
    for each in process, other:
        assert each.stdout is not None
        assert each.stdout.readline() == "begun\n"
        assert each.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(0)
    process.send_signal(number)
    output, _ = process.communicate(300)
    assert process.returncode == process.poll() == -number
    assert ("KeyboardInterrupt" in output) == (number == signal.SIGINT)
    assert other.poll() is None
    other.kill()
    other.communicate(300)
    until(lambda: not Path(f"/proc/{other.pid}").exists())
    other.kill()  # does nothing, as it has ended
