"""The installation of the code to compare with."""

import subprocess
from pathlib import Path

import pytest

from bench.serve.other_code import NoSuchCode, name_of, other_code

_PROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "example"
version = "1"
[tool.setuptools]
py-modules = ["example"]
"""


def test_a_folder_is_used_as_it_is(tmp_path: Path) -> None:
    with other_code(str(tmp_path)) as folder:
        assert folder == tmp_path
    assert name_of(str(tmp_path)) == tmp_path.name


def test_a_commit_that_does_not_exist_is_named(tmp_path: Path) -> None:
    _git(tmp_path, "init", "--quiet")
    with pytest.raises(NoSuchCode, match="no-such-commit"), other_code("no-such-commit", tmp_path):
        pass


def test_a_commit_is_installed_and_removed_again(tmp_path: Path) -> None:
    _git(tmp_path, "init", "--quiet")
    (tmp_path / "pyproject.toml").write_text(_PROJECT)
    for answer in (1, 2):
        (tmp_path / "example.py").write_text(f"answer = {answer}\n")
        _git(tmp_path, "add", ".")
        _git(tmp_path, "commit", "--quiet", "--message", f"Answer {answer}")
    with other_code("HEAD~1", tmp_path) as folder:
        assert (folder / "example.py").read_text() == "answer = 1\n"
    assert not folder.exists()
    command = ("git", "rev-parse", "--short=8", "HEAD~1")
    short = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert name_of("HEAD~1", tmp_path) == short.stdout.strip()


def _git(repository: Path, *command: str) -> None:
    somebody = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", *somebody, *command], cwd=repository, check=True)
