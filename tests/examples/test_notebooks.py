"""The notebooks run from their first cell to their last, each in a process of its own."""

import ast
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded

ROOT = Path(__file__).parent.parent.parent
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
_LATE = 180

# Runs each cell and shows the value of its last expression, as a notebook does.
_RUNNER = """
import ast, json, sys, warnings
warnings.simplefilter("error")
names = {"__name__": "__main__"}
for number, source in enumerate(json.load(sys.stdin)):
    cell, value = ast.parse(source), None
    if cell.body and isinstance(cell.body[-1], ast.Expr):
        value = ast.Expression(cell.body.pop().value)
    exec(compile(cell, f"cell {number}", "exec"), names)
    shown = value and eval(compile(value, f"cell {number}", "eval"), names)
    if shown is not None:
        print(repr(shown))
"""


def cells(path: Path) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(path.read_text())["cells"]
    return result


def programs(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "code"]


def test_there_are_three_notebooks_which_the_examples_list() -> None:
    listed = (ROOT / "examples/README.md").read_text()
    assert len(NOTEBOOKS) == 3
    assert all(path.name in listed for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = preloaded.run(
        *("-c", _RUNNER), environment=environment, text=json.dumps(programs(path)), timeout=_LATE
    )
    assert (done.returncode, done.stderr) == (0, "")
    shown = {
        "classify_as_you_type": ("<sruserve model 'question-type'", "number", "human", "location"),
        "generate_fork_compare": ("<sruserve model 'shakespeare'", "bits per character"),
        "continue_on_a_server": ("Classification(label='number'", "state_unknown_key"),
    }
    for part in shown[path.stem]:
        assert part in done.stdout


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs_and_can_be_read(path: Path) -> None:
    notebook = json.loads(path.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in cells(path)}) == len(cells(path))
    first = cells(path)[0]
    assert first["cell_type"] == "markdown"
    assert "".join(first["source"]).startswith("# ")
    for cell in cells(path):
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            ast.parse("".join(cell["source"]))
