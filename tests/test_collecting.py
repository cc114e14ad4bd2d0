"""The first of several processes compiles the tests, which the others then find compiled."""

from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from tests import collecting
from tests.collecting import first_alone, is_compiled
from tests.server.observing import until


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(collecting, "is_compiled", lambda: False)
    monkeypatch.setattr("sys.dont_write_bytecode", False)


def process(name: str, folder: Path) -> Any:
    """The configuration of one of several processes, or of the only one."""
    return SimpleNamespace(
        getoption={"basetemp": str(folder / f"popen-{name}")}.get,
        **({"workerinput": {"workerid": name}} if name else {}),
    )


def test_the_others_begin_when_the_first_one_has_collected(tmp_path: Path) -> None:
    began: list[str] = []

    def collect(name: str) -> None:
        with first_alone(process(name, tmp_path)):
            began.append(name)

    others = [Thread(target=collect, args=(f"gw{number}",)) for number in (1, 2)]
    with first_alone(process("gw0", tmp_path)):
        for other in others:
            other.start()
        collect("")  # a process alone waits for nobody
        assert began == [""]
    until(lambda: len(began) == 3)
    for other in others:
        other.join()


def test_the_others_do_not_wait_for_one_that_is_gone(tmp_path: Path) -> None:
    with first_alone(process("gw1", tmp_path), timeout_seconds=0.0):
        pass


@pytest.mark.parametrize("name", ["gw0", "gw1"])
def test_nobody_waits_where_tests_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(collecting, "is_compiled", lambda: True)
    with first_alone(process(name, tmp_path)):
        assert list(tmp_path.iterdir()) == []


def test_tests_are_compiled_where_pytest_has_kept_them(tmp_path: Path) -> None:
    kept = tmp_path / "__pycache__"
    kept.mkdir()
    (kept / "training.cpython-311.pyc").touch()
    assert not is_compiled(tmp_path)
    (kept / "test_networks.cpython-311-pytest-9.2.0.pyc").touch()
    assert is_compiled(tmp_path)
