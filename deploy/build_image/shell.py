"""Run commands with their output in one log file, say the progress, and delete a work folder."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_LAST_LINES = 30


class Failed(Exception):
    """A step failed; the message says which and why."""


class Shell:
    """Runs commands. log: a file for the output that nobody reads unless a command fails.

    Temporary files lie in a folder beside it.
    """

    def __init__(self, log: Path) -> None:
        self._log, self._begin = log, time.monotonic()
        self._temporary = log.parent / "tmp"
        self._temporary.mkdir(exist_ok=True)

    def step(self, name: str) -> None:
        """Say that a step begins."""
        self.say(f"== {name} ({time.monotonic() - self._begin:.0f} s)")

    @staticmethod
    def say(line: str) -> None:
        print(line, flush=True)

    def run(self, *words: str | Path, environment: dict[str, str] | None = None) -> None:
        """Run a command; raises `Failed` with the end of its output."""
        with self._log.open("ab") as log:
            start = log.tell()
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"TMPDIR": str(self._temporary)} | (environment or {}),
                check=False,
            )
        if done.returncode:
            output = self._log.read_bytes()[start:].decode(errors="replace").splitlines()
            raise Failed("\n".join([_failure(words, done.returncode), *output[-_LAST_LINES:]]))

    @staticmethod
    def output(*words: str | Path) -> str:
        """What a command writes to its standard output; raises `Failed`."""
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Failed(f"{_failure(words, done.returncode)}\n{done.stderr.strip()}")
        return done.stdout.strip()


def _failure(words: Sequence[str | Path], code: int) -> str:
    return f"{' '.join(map(str, words))}: exit code {code}"


def mounts_below(folder: Path) -> list[str]:
    """What is mounted below a folder, the deepest first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    points = [line.split()[1].encode().decode("unicode_escape") for line in lines]
    return sorted((point for point in points if point.startswith(f"{folder}/")), reverse=True)


def remove(folder: Path) -> list[str]:
    """Unmount what a failed step has left below a folder, and delete it.

    Returns what stays mounted: then nothing is deleted, because it may be the machine's own /dev.
    """
    folder = folder.resolve()
    for point in mounts_below(folder):
        subprocess.run(["umount", point], check=False)
    if not (left := mounts_below(folder)):
        print(f"deleting {folder}", file=sys.stderr)
        shutil.rmtree(folder)
    return left
