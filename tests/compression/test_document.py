"""The commands of docs/compression.md run, and its table says what this text takes."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from bench.cpu.compression import Codec, codecs
from sruserve.model.folder import load_model
from tests.preloaded import command

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/compression.md").read_text()
ROWS = {
    cells[0]: int(cells[1].replace(",", ""))
    for line in re.findall(r"^\| (.*) \|$", PAGE, re.MULTILINE)
    if len(cells := line.split(" | ")) == 5 and cells[1].strip("0123456789,") == ""
}


def test_the_commands_of_the_document_run(tmp_path: Path) -> None:
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    programs = tmp_path / "bin"
    programs.mkdir()
    preloader = command(programs / "sruserve", "-m", "sruserve")
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", commands],
        cwd=tmp_path,
        env=environment,
        pass_fds=[preloader],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "back.txt").stat().st_size == 20_000
    assert (tmp_path / "scene.txt.sruz").stat().st_size < 6000


@pytest.fixture(scope="module")
def candidates() -> dict[str, Codec]:
    return codecs(load_model(ROOT / "sruserve/demo/shakespeare"))


@pytest.mark.parametrize("name", ROWS)
def test_the_table_has_the_bytes_of_each_candidate(name: str, candidates: dict[str, Codec]) -> None:
    assert len(ROWS) == 4
    if name not in candidates:
        pytest.skip("needs the system package zstd (apt-get install zstd)")
    data = (ROOT / "tests/data/shakespeare.tail").read_bytes()
    # releases of xz and zstd differ by some bytes, and other instruction sets by a few
    assert len(candidates[name][0](data)) == pytest.approx(ROWS[name], abs=100)
