"""The code of another commit, installed beside this one."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.machine import ROOT


class NoSuchCode(Exception):
    """There is no such commit, or it cannot be installed; the message says why."""


@contextmanager
def other_code(where: str, repository: Path = ROOT) -> Iterator[Path]:
    """A folder that `PYTHONPATH` can name, with the package and its compiled kernel.

    where: a commit of `repository`, or a checkout with a compiled kernel, used as it is.
    """
    if Path(where).is_dir():
        yield Path(where).resolve()
        return
    commit = _output("git", "-C", str(repository), "rev-parse", "--verify", f"{where}^{{commit}}")
    source = f"git+{repository.resolve().as_uri()}@{commit}"
    with TemporaryDirectory(prefix="sruserve-") as folder:
        _output(*_INSTALL, "--target", folder, source)
        yield Path(folder)


_INSTALL = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoSuchCode(f"{' '.join(command)}\n{done.stderr.strip()}")
    return done.stdout.strip()
