"""Files that the user may not read or write are named as such by every command."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.preloaded import run
from tests.support import save_random_model

UNPRIVILEGED = """
import os
from sruserve.cli import main
from sruserve.model.verification import cases
from sruserve.model.verification import coverage
from sruserve.model import inspect
from sruserve.model.verification import text_cases
from sruserve.model.verification import verify_texts
from sruserve.model.importers import build, torch_rnn
from sruserve.server import run
if os.geteuid() == 0:
    os.seteuid(65534)  # root may read any file
main()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a locked file of every kind; tmp_path itself is open to its owner only."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o777)
        for model, locked in ("m", ""), ("n", "config.json"), ("o", "model.safetensors"):
            save_random_model(path / model, vocab_size=9)
            (path / model / locked).chmod(0)
        (path / "locked").mkdir()
        save_random_model(path / "locked" / "m", vocab_size=9)
        torch.save(dict(torch.nn.GRU(2, 3).state_dict()), path / "locked" / "w.pt")
        torch.save(dict(torch.nn.GRU(2, 3).state_dict()), path / "w.pt")
        for file in "x.pt", "x.safetensors", "x.json":
            (path / file).touch(0o000)
        (path / "locked").chmod(0)
        yield path
        (path / "m").chmod(0o700)
        (path / "locked").chmod(0o700)


@pytest.mark.parametrize(
    ("arguments", "verb", "place"),
    [
        ("inspect m", "read", "m"),
        ("inspect n", "read", "n/config.json"),
        ("inspect o", "read", "o/model.safetensors"),
        ("inspect locked/m", "read", "locked/m"),
        ("import x.pt out --task encode", "read", "x.pt"),
        ("import x.safetensors out --task encode", "read", "x.safetensors"),
        ("import locked/w.pt out --task encode", "read", "locked/w.pt"),
        ("import w.pt out --task encode --options x.json", "read", "x.json"),
        ("import w.pt locked/out --task encode", "write", "locked/out"),
        ("import w.pt m --task encode", "write", "m"),
    ],
)
def test_a_file_without_permission_is_one_line(
    folder: Path, arguments: str, verb: str, place: str
) -> None:
    done = run("-c", UNPRIVILEGED, *arguments.split(), folder=folder)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: cannot {verb} ")
    assert done.stderr.endswith(f"{place}: Permission denied\n")
