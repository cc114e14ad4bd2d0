"""Preloaded processes behave as those that a test starts itself."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.preloaded import ROOT, Preloaded, command, run
from tests.server.observing import until

# Here a preloaded process differs: it has imported the package before it gets its environment.
SET_BY_THE_PACKAGE = {"GOMP_SPINCOUNT": "1000", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
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
    environment = SET_BY_THE_PACKAGE | {"OF_ITS_OWN": "\udcff", "PATH": os.environ["PATH"]}
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


def test_a_command_of_a_shell_runs_in_it(tmp_path: Path) -> None:
    program = "import os, sys; print(*sys.argv, os.environ['ONE'], sys.stdin.read()); sys.exit(3)"
    descriptor = command(tmp_path / "say", "-c", program)
    done = subprocess.run(
        ["sh", "-c", 'echo given | ONE=1 ./say "a b" > out; echo "$?"; cat out; ls'],
        cwd=tmp_path,
        pass_fds=[descriptor],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "3\n-c a b 1 given\n\nout\nsay\n"
    assert done.stderr == ""


def test_an_error_is_reported_and_sets_the_exit_code() -> None:
    done = run("-c", "raise ValueError('of its own')")
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: of its own\n")


def test_torch_and_the_server_are_there() -> None:
    done = run("-c", "import sys; print({'torch', 'sruserve.server.app'} <= sys.modules.keys())")
    assert done.stdout == "True\n"


SUPERVISES = """
import json, logging, multiprocessing, os, signal, sys, threading
signals = signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1
def work(sent):
    ours = [name for name in sys.modules if name.startswith(("sruserve", "prometheus_client"))]
    print(json.dumps([
        sys.argv, os.getcwd(), sorted(os.environ), __name__, sent, ours, logging.root.handlers,
        len(os.listdir("/proc/self/fd")), threading.active_count(), signal.set_wakeup_fd(-1),
        [str(signal.getsignal(number)) for number in signals],
        sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    ]))
    sys.exit(4)
if __name__ == "__main__":
    import sruserve.server.metrics.files
    os.environ["OF_ITS_SUPERVISOR"] = "1"
    logging.basicConfig()
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    _, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    worker = multiprocessing.get_context("spawn").Process(target=work, args=("sent",))
    worker.start()
    worker.join()
    print(worker.exitcode)
"""


def test_a_worker_is_as_one_that_was_spawned_and_has_torch(tmp_path: Path) -> None:
    (tmp_path / "supervises.py").write_text(SUPERVISES)
    arguments = (str(tmp_path / "supervises.py"), "one")
    environment = {"PATH": os.environ["PATH"], "LC_CTYPE": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    environment |= SET_BY_THE_PACKAGE
    started = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    forked = run(*arguments, environment=environment, folder=tmp_path)
    assert forked.stdout == started.stdout
    assert forked.stderr == started.stderr == ""
    assert '"OF_ITS_SUPERVISOR"' in forked.stdout
    assert forked.stdout.endswith("\n4\n")
    (tmp_path / "supervises.py").write_text(
        SUPERVISES.replace("sys.exit(4)", "print('torch' in sys.modules)")
    )
    assert run(*arguments, environment=environment, folder=tmp_path).stdout.endswith("True\n0\n")


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
