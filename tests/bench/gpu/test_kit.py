"""The kit for a GPU machine: its script needs a Python with torch, and nothing from a network."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from bench.gpu.kit import pack_sources, write_start
from bench.report.machine import ROOT


def test_the_kit_unpacks_itself_once_and_runs_a_stage_of_its_own_sources(tmp_path: Path) -> None:
    kit = tmp_path / "a kit"
    (kit / "wheels").mkdir(parents=True)
    with zipfile.ZipFile(kit / "wheels" / "unpacked-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("packed_in_a_wheel.py", "")
    pack_sources(kit / "sources.tar.gz")
    write_start(kit / "first-hour.sh")
    command = ["sh", str(kit / "first-hour.sh"), "--help"]

    def start(python: str) -> str:
        done = subprocess.run(
            command, env={**os.environ, "PYTHON": python}, cwd="/", capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "--stage" in start(sys.executable)
    shutil.rmtree(kit / "wheels")
    # Now it unpacks nothing and only runs the stage.
    assert start("echo") == "-m bench.gpu first-hour --help\n"
    unpacked = kit / "unpacked"
    for path in ("site/packed_in_a_wheel.py", "tests/gpu/conftest.py", "sruserve/__init__.py"):
        assert (unpacked / path).exists(), path
    kernels = Path("sruserve/kernels/cpu")
    packed = [each.name for each in unpacked.glob(f"{kernels}/_kernel*.so")]
    compiled = any(ROOT.glob(f"{kernels}/_kernel*.so"))
    assert packed == ["_kernel.so"] * compiled, "a name for every version of Python"
