"""The tests of what has changed since a commit: `python -m tests.changed [main]` prints them."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
ALWAYS = ("tests/test_docs.py", "tests/test_layers.py")


def affected_tests(changed: Iterable[str]) -> list[str]:
    """The test file or folder that mirrors each changed file, or all that mirror its folder.

    A file that is no Python has the tests of its own folder alone.
    """
    paths = set(ALWAYS)
    for path in map(Path, changed):
        top, *folders = path.parts[:-1] or ("",)
        if path.name.startswith("test_") and (ROOT / path).exists():
            paths.add(str(path))
        elif path.is_relative_to("examples/onnx"):
            paths.add("tests/examples")
        elif path.is_relative_to("docs/site"):
            paths.add("tests/site")
        elif top == "sruserve" and path.suffix == ".py":
            folder = Path("tests", *folders)
            same = folder / f"test_{path.stem}.py"
            if (ROOT / folder / path.stem).is_dir():
                folder /= path.stem
            while not (ROOT / folder).exists():
                folder = folder.parent
            every = (ROOT / folder).glob("test_*.py") if folder != Path("tests") else ()
            near = [each.relative_to(ROOT) for each in every]
            paths |= {str(same)} if (ROOT / same).exists() else set(map(str, near))
        elif top == "sruserve" and (ROOT / Path("tests", *folders)).is_dir():
            paths.add(str(Path("tests", *folders)))
    return sorted(paths)


def changed_since(commit: str) -> list[str]:
    """Paths that differ from where the branch left `commit`, and untracked ones."""
    base = _git("merge-base", commit, "HEAD")[0]
    untracked = _git("ls-files", "--others", "--exclude-standard")
    return [*_git("diff", "--name-only", base), *untracked]


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:-1]


if __name__ == "__main__":
    print("\n".join(affected_tests(changed_since(*sys.argv[1:] or ["main"]))))
