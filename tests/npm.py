"""Packages of Node.js for tests, as a lock file pins them."""

import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


def installed(project: Path, output: str, name: str) -> Path:
    """What `npm ci` installs, from the first run on beside the virtual environment.

    project: a folder with package.json and package-lock.json. output: the file or folder of an
    installed project that is wanted. name: of the place where it is kept.
    """
    pinned = [project / "package.json", project / "package-lock.json"]
    digest = sha256(b"".join(file.read_bytes() for file in pinned)).hexdigest()[:16]
    kept = Path(sys.prefix) / name / digest
    if not kept.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("needs the system package npm (apt-get install npm)")
        kept.parent.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=kept.parent) as folder:
            for file in pinned:
                shutil.copy(file, folder)
            subprocess.run([npm, "ci"], cwd=folder, check=True, capture_output=True, timeout=300)
            Path(folder, output).rename(kept)
    return kept
