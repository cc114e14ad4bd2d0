"""Pack what a GPU machine without a network needs for the first hour into one folder.

    make gpu-kit        # build/gpu-kit; on that machine: sh build/gpu-kit/first-hour.sh --stage 1 …

The machine has Python with torch and Triton. The kit brings the committed sources and tests, the
compiled C kernel, and the wheels of all other packages that the tests import. It installs nothing:
wheels are unpacked beside the sources.
"""

import argparse
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

from bench.report.machine import ROOT

_OF_TESTS = ("httpx", "hypothesis", "psutil", "pytest", "pytest-xdist")
_NOT_PACKED = (":!docs", ":!examples", ":!sruserve/demo")
_MAX_BYTES = 64 << 20  # that a borrowed machine takes
_START = """#!/bin/sh
# Unpack the kit beside itself, once, and run a stage of the first hour from it.
set -e
kit=$(cd "$(dirname "$0")" && pwd)
if [ ! -e "$kit/unpacked/ready" ]; then
  mkdir -p "$kit/unpacked/site"
  tar -xzf "$kit/sources.tar.gz" -C "$kit/unpacked"
  for wheel in "$kit"/wheels/*.whl; do
    "${PYTHON:-python3}" -m zipfile -e "$wheel" "$kit/unpacked/site"
  done
  touch "$kit/unpacked/ready"
fi
cd "$kit/unpacked"
PYTHONPATH="$kit/unpacked:$kit/unpacked/site" exec "${PYTHON:-python3}" -m bench.gpu first-hour "$@"
"""


def main() -> int:
    """Write the kit; returns 1 if it is too large."""
    parser = argparse.ArgumentParser(
        "python -m bench.gpu.kit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "gpu-kit")
    parser.add_argument(
        "--python",
        default=f"{sys.version_info.major}.{sys.version_info.minor}",
        help="the version of the GPU machine's Python; default: %(default)s",
    )
    args = parser.parse_args()
    args.to.mkdir(parents=True, exist_ok=True)
    _download(args.to / "wheels", args.python)
    pack_sources(args.to / "sources.tar.gz")
    write_start(args.to / "first-hour.sh")
    size = sum(file.stat().st_size for file in args.to.rglob("*") if file.is_file())
    print(f"{args.to}: {size / 2**20:.1f} MiB")
    if size > _MAX_BYTES:
        print(f"that is more than {_MAX_BYTES >> 20} MiB", file=sys.stderr)
    return int(size > _MAX_BYTES)


def _download(folder: Path, python: str) -> None:
    """Download wheels for another machine, without torch and what it brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"]["grammars"]]
    requirements = [each for each in requirements if not each.startswith("torch")]
    for wheel in folder.glob("*.whl"):
        wheel.unlink()
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--only-binary", ":all:", "--python-version", python, "--dest", str(folder)),
            *("--constraint", str(ROOT / "constraints.txt"), *requirements, *_OF_TESTS),
        ],
        check=True,
    )


def write_start(script: Path) -> None:
    """Write the script that unpacks the kit and runs a stage."""
    script.write_text(_START)


def pack_sources(archive: Path) -> None:
    """Pack the committed files, without docs and models, and the compiled C kernel."""
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        subprocess.run(
            ["git", "archive", "--output", file.name, "HEAD", "--", ".", *_NOT_PACKED],
            cwd=ROOT, check=True,
        )  # fmt: skip
        with tarfile.open(file.name) as committed, tarfile.open(archive, "w:gz") as packed:
            for member in committed:
                packed.addfile(member, committed.extractfile(member) if member.isfile() else None)
            for kernel in (ROOT / "sruserve" / "kernels" / "cpu").glob("_kernel*.so"):
                packed.add(kernel, kernel.with_name("_kernel.so").relative_to(ROOT))
                break  # a name that every version of Python loads, which it calls through ctypes


if __name__ == "__main__":
    sys.exit(main())
