"""The process that imports the package: what an import costs, a fork, Ctrl-C, and the end."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded

ROOT = Path(__file__).parent.parent.parent
_LATE = 300
VARIABLES = ("GOMP_SPINCOUNT", "ONEDNN_MAX_CPU_ISA")


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter of its own, which ends by itself."""
    inherited = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=_LATE,
    )


def run_on(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program of which no import is asked: torch and the server are there."""
    return preloaded.run("-c", f"import warnings\nwarnings.simplefilter('error')\n{program}")


def output(
    program: str, run: Callable[..., subprocess.CompletedProcess[str]] = run, /, **environment: str
) -> Any:
    """What a program prints, as JSON."""
    done = run(program, **environment)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout)


def test_an_import_alone_loads_no_library() -> None:
    program = """
import json, sys
before = set(sys.modules)
import sruserve
dir(sruserve), sruserve.__version__
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    loaded = output(program)
    outside = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert outside == {"sruserve"}
    assert len(loaded) < 20


def test_every_public_name_can_be_imported_and_has_a_docstring() -> None:
    program = """
import json, sruserve
print(json.dumps({name: bool(getattr(sruserve, name).__doc__) for name in sruserve.__all__}))
"""
    names = output(program)
    assert {"load", "save", "Model", "ServeError"} <= set(names)
    assert all(names.values())


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, ["1000", "AVX512_CORE_BF16"]),
        ({"GOMP_SPINCOUNT": "77", "ONEDNN_MAX_CPU_ISA": "AVX2"}, ["77", "AVX2"]),
    ],
)
def test_variables_of_torch_are_set_before_it_unless_the_user_has_set_them(
    own: dict[str, str], expected: list[str]
) -> None:
    """OpenMP's spinning, and the newest instructions with which sums have one order."""
    program = """
import json, os, sys
import sruserve
assert "torch" not in sys.modules
print(json.dumps([os.environ["GOMP_SPINCOUNT"], os.environ["ONEDNN_MAX_CPU_ISA"]]))
"""
    assert output(program, **own) == expected


def test_torch_before_the_package_says_that_threads_spin() -> None:
    program = """
import logging, torch, sruserve
logging.basicConfig(level="INFO", format="%(message)s")
sruserve.load("question-type").close()
"""
    done = run(program)
    assert done.returncode == 0, done.stderr
    assert "import sruserve before torch" in done.stderr
    done = run(program.replace("torch, sruserve", "sruserve, torch"))
    assert "before torch" not in done.stderr


ENDS = [
    ("question-type", "model.classify('who')"),
    ("question-type", "model.aio.classify(['who'] * 5)  # is never awaited"),
    ("question-type", "raise SystemExit(0)"),
    ("shakespeare", "iterator = model.generate('a', max_tokens=1000000); next(iterator)"),
    ("shakespeare", "threading.Thread(target=spin, daemon=True).start(); time.sleep(0.2)"),
]


@pytest.mark.parametrize(("name", "last"), ENDS, ids=[last[:12] for _, last in ENDS])
def test_an_interpreter_ends_cleanly_without_close(name: str, last: str) -> None:
    program = f"""
import atexit, threading, time, warnings, sruserve
warnings.simplefilter("ignore", RuntimeWarning)
# runs after the handler that the first load registers
atexit.register(lambda: print("ended:", model._local.served.engine.ended))
model = sruserve.load("{name}")
def spin():
    while True:
        model.generate("a", max_tokens=200).read()
        model.score(["who"] * 500)
print("loaded", flush=True)
{last}
"""
    done = run_on(program)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "loaded\nended: True\n")


def test_a_fork_is_refused_and_the_parent_continues() -> None:
    program = """
import json, os, sruserve, sys
model = sruserve.load("question-type")
writer = sruserve.load("shakespeare")
stream, generation = model.stream(), writer.generate("a", max_tokens=1000)
label = model.classify("who").label
reading, writing = os.pipe()
child = os.fork()
if not child:
    codes = []
    for call in (
        lambda: model.classify("who"), lambda: model.classify(["who"] * 999),
        lambda: stream.send("who"), lambda: next(generation), lambda: sruserve.load("shakespeare"),
        lambda: model.close(), lambda: model.stream(), lambda: writer.generate("a"),
    ):
        try:
            call()
            codes.append("none")
        except sruserve.ServeError as error:
            codes.append(error.code)
    os.write(writing, json.dumps(codes).encode())
    sys.exit()  # with the handlers of the interpreter's end
os.close(writing)
with os.fdopen(reading) as sent:
    codes = json.loads(sent.read())
status = os.waitpid(child, 0)[1]
assert model.classify("who").label == label and len(generation.read().token_ids) == 1000
print(json.dumps([codes, status]))
"""
    codes, status = output(program, run_on)
    assert codes == ["forked_process"] * 8
    assert status == 0


def test_a_process_that_is_spawned_has_models_of_its_own(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import multiprocessing, sruserve
def label(text):
    with sruserve.load("question-type") as model:
        return model.classify(text).label
if __name__ == "__main__":
    with sruserve.load("question-type") as model:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.map(label, ["who"]) == [model.classify("who").label]
    print("same")
""")
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=_LATE,
    )
    assert done.stdout == "same\n", done.stderr


def test_an_interrupt_ends_a_call_and_the_model_serves_on() -> None:
    program = """
import json, os, signal, sruserve, threading, time
model = sruserve.load("shakespeare")
engine = model._local.served.engine
def interrupt():
    while not engine.running:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)
caught = 0
for call in (
    lambda: model.generate("a", max_tokens=1000000).read(),
    lambda: model.score(["a" * 100000] * 50),
):
    threading.Thread(target=interrupt).start()
    try:
        call()
    except KeyboardInterrupt:
        caught += 1
    while engine.running or engine.rows:
        time.sleep(0.001)
print(json.dumps([caught, model.score("abc").tokens]))
"""
    assert output(program, run_on) == [2, 2]


def test_a_signal_s_handler_is_the_user_s_own() -> None:
    program = """
import json, signal, sruserve
before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
model = sruserve.load("question-type")
after = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
print(json.dumps(before == after))
"""
    assert output(program, run_on) is True
