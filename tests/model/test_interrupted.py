"""An import that is stopped leaves nothing; what a killed one leaves goes with the next."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import pytest
import torch

from sruserve.model.atomic_dir import replace_directory
from sruserve.model.folder import load_model
from tests.preloaded import Preloaded
from tests.support import save_random_model

IMPORT = """
import resource, sys, time
from sruserve.cli import main
from sruserve.model import folder
if sys.argv.pop(1) == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
else:
    load_model = folder.load_model

    def stay(*arguments):
        print("written", flush=True)
        while True:  # a single wait would miss a signal that arrives just before it
            time.sleep(0.05)

    folder.load_model = stay
main()
"""


@pytest.fixture
def errors() -> Iterator[IO[str]]:
    """What an import writes to its standard errors."""
    with TemporaryFile("w+") as file:
        yield file


def importing(tmp_path: Path, how: str, out: str, errors: IO[str]) -> Preloaded:
    """An import that has written a temporary folder and stays there, or meets a full disk."""
    torch.save(dict(torch.nn.LSTM(20, 40).state_dict()), tmp_path / "weights.pt")
    arguments = ["import", str(tmp_path / "weights.pt"), str(tmp_path / out), "--task", "encode"]
    command = ("-c", IMPORT, how, *arguments)
    return Preloaded.reading(*command, environment=os.environ, errors=errors.fileno())


def text_of(errors: IO[str]) -> str:
    errors.seek(0)
    return errors.read()


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("out", ["m", "new/folders/m"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_an_import_that_is_stopped_leaves_no_folder(
    tmp_path: Path, number: signal.Signals, out: str, errors: IO[str]
) -> None:
    process = importing(tmp_path, "stay", out, errors)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    assert names(tmp_path) != ["weights.pt"]
    process.send_signal(number)
    process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert "Traceback" not in text_of(errors)
    assert names(tmp_path) == ["weights.pt"]


def test_a_full_disk_is_one_line_and_leaves_no_folder(tmp_path: Path, errors: IO[str]) -> None:
    process = importing(tmp_path, "full", "new/m", errors)
    process.communicate(timeout=300)
    assert process.returncode == 1
    assert text_of(errors).startswith(f"error: cannot write {tmp_path}/new/m: ")
    assert text_of(errors).count("\n") == 1
    assert names(tmp_path) == ["weights.pt"]


def test_the_next_import_removes_what_a_killed_one_left(tmp_path: Path, errors: IO[str]) -> None:
    process = importing(tmp_path, "stay", "m", errors)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.communicate(timeout=300)
    (left,) = set(names(tmp_path)) - {"weights.pt"}
    assert left.startswith(".m.sruserve-")
    save_random_model(tmp_path / "m2", vocab_size=9)
    assert left in names(tmp_path)
    save_random_model(tmp_path / "m", vocab_size=9)
    assert names(tmp_path) == ["m", "m2", "weights.pt"]


def test_an_import_that_runs_keeps_its_folder(tmp_path: Path, errors: IO[str]) -> None:
    process = importing(tmp_path, "stay", "m", errors)
    assert process.stdout is not None
    process.stdout.readline()
    (own,) = set(names(tmp_path)) - {"weights.pt"}
    save_random_model(tmp_path / "m", vocab_size=9)
    assert own in names(tmp_path)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert names(tmp_path) == ["m", "weights.pt"]


def test_a_model_that_was_being_replaced_is_put_back(tmp_path: Path) -> None:
    """A process that is killed between the two renames leaves the old model aside."""
    folder = save_random_model(tmp_path / "m", vocab_size=9)
    digest = load_model(folder).digest
    left = tmp_path / ".m.sruserve-abcd1234"
    left.mkdir()
    folder.rename(left / "m.old")
    (left / "m").mkdir()
    with pytest.raises(ValueError, match="refused"), replace_directory(folder):
        raise ValueError("refused")
    assert names(tmp_path) == ["m"]
    assert load_model(folder).digest == digest


@pytest.mark.parametrize(
    "name",
    [".m.sruserve-abcd1234", ".m.old.sruserve-abcd1234", ".mm.sruserve-abcd1234", ".m.Backup"],
)
def test_folders_of_others_are_kept(tmp_path: Path, name: str) -> None:
    (tmp_path / name / "mine").mkdir(parents=True)
    save_random_model(tmp_path / "m", vocab_size=9)
    assert names(tmp_path) == sorted(["m", name])


@pytest.mark.parametrize("content", ["m", "m.old", None], ids=["a copy", "an old one", "nothing"])
@pytest.mark.parametrize("name", [".m.backup", ".m.abcd1234", ".m.sruserve-copy"])
def test_a_hidden_copy_of_a_model_is_kept(tmp_path: Path, name: str, content: str | None) -> None:
    (tmp_path / name / (content or "")).mkdir(parents=True)
    for _ in range(2):
        save_random_model(tmp_path / "m", vocab_size=9)
        assert names(tmp_path) == sorted(["m", name])
        assert names(tmp_path / name) == ([] if content is None else [content])


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with replace_directory(tmp_path / "m"):
            pass
    assert len(os.listdir("/proc/self/fd")) == before
