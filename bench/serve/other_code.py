"""Install the code of another commit into a temporary folder."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.report.machine import ROOT


class NoSuchCode(Exception):
    """The commit does not exist or cannot be installed; the message says why."""


@contextmanager
def other_code(code: str, repository: Path = ROOT) -> Iterator[Path]:
    """Yield a folder for `PYTHONPATH`, with the package and its compiled kernel.

    code: a commit of `repository`, or a checkout with a compiled kernel, which is used unchanged.

    Raises `NoSuchCode`.
    """
    if Path(code).is_dir():
        yield Path(code).resolve()
        return
    commit = _commit(code, repository)
    source = f"git+{repository.resolve().as_uri()}@{commit}"
    with TemporaryDirectory(prefix="sruserve-") as folder:
        _output(*_INSTALL, "--target", folder, source)
        yield Path(folder)


def name_of(code: str, repository: Path = ROOT) -> str:
    """Return the commit's short name, or the folder's name. Raises `NoSuchCode`."""
    return Path(code).name if Path(code).is_dir() else _commit(code, repository)[:8]


def _commit(code: str, repository: Path) -> str:
    return _output("git", "-C", str(repository), "rev-parse", "--verify", f"{code}^{{commit}}")


_INSTALL = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoSuchCode(f"{' '.join(command)}\n{done.stderr.strip()}")
    return done.stdout.strip()
