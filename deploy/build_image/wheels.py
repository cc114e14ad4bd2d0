"""Fill a folder with the wheels that the image installs."""

import hashlib
import re
import sys
from pathlib import Path

from deploy.build_image.shell import Failed, Shell


def fill(shell: Shell, folder: Path, python_version: str, torch_index: str) -> None:
    """Download what requirements.lock lists, and torch, with the machine's configuration of pip.

    python_version: of the Python that will run them. torch_index: for torch alone; empty: pip's.
    """
    folder.mkdir(exist_ok=True)
    download = (
        *(sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"),
        *("--only-binary=:all:", "--python-version", python_version),
        *("--dest", folder, "--find-links", folder),
    )
    lock = folder / "requirements.txt"
    lock.write_text(for_any_python(Path("requirements.lock").read_text()))
    shell.run(*download, "--require-hashes", "--requirement", lock)
    lock.unlink()
    pins = Path("constraints.txt").read_text().splitlines()
    (torch,) = [pin for pin in pins if pin.startswith("torch==")]
    shell.run(*download, *(("--index-url", torch_index) if torch_index else ()), torch)
    files = list(folder.glob("*.whl"))
    size = sum(file.stat().st_size for file in files)
    shell.say(f"{len(files)} wheels, {size / 1e6:.0f} MB, for Python {python_version}")


def for_any_python(requirements: str) -> str:
    """Requirements of which none depends on Python's version alone.

    pip would compare the version with its own Python's. A wheel that is not needed does no harm.
    """
    return re.sub(r" ; python_full_version [<>=]+ '[\d.]+'(?= \\$)", "", requirements, flags=re.M)


def torch_wheel(folder: Path) -> Path:
    """The wheel of torch's CPU build; raises `Failed` if there is another one or none."""
    wheels = sorted(folder.glob("torch-*.whl"))
    if len(wheels) != 1:
        raise Failed(f"{folder} has {len(wheels)} wheels of torch, not one")
    if "+cpu" not in wheels[0].name:
        raise Failed(
            f"{wheels[0].name} is not torch's CPU build: remove it, and name the index of the CPU "
            'build with --torch-index (docs/deployment.md, "Choosing PyTorch\'s CPU build")'
        )
    return wheels[0]


def sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
