"""No test changes a module's constant: what a test chooses is an argument of its owner."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*|__defaults__")
# Only these words can change one; a file without them is not parsed.
CHANGES = re.compile(r"setattr|delattr|\bpatch\b|\.[_A-Z0-9]+ *(:[^=\n]+)?[-+*/|&]?= ")


def changed_constants(source: str) -> Iterator[tuple[int, str]]:
    """The lines of a source that change a constant of something else, and its name."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        match node:
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)):
                if called in ("setattr", "delattr", "patch", "object"):
                    names = [_text(each).rpartition(".")[2] for each in node.args[:2]]
            case ast.Assign(targets=targets):
                names = [each.attr for each in targets if isinstance(each, ast.Attribute)]
            case ast.AugAssign(target=ast.Attribute(attr=name)):
                names = [name]
            case ast.AnnAssign(target=ast.Attribute(attr=name)):
                names = [name]
        for name in filter(CONSTANT.fullmatch, names):
            yield getattr(node, "lineno", 0), name


def _text(node: ast.expr) -> str:
    """A string literal; an empty one for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@pytest.mark.parametrize(
    "change",
    [
        'monkeypatch.setattr(module, "LIMIT", 1)',
        'monkeypatch.setattr("package.module._LIMIT_2", 1)',
        'setattr(module, "LIMIT", 1)',
        'patch.object(module, "LIMIT", 1)',
        'patch("package.module.LIMIT", 1)',
        'monkeypatch.setattr(function, "__defaults__", (1,))',
        "module.LIMIT = 1",
        "module._LIMIT += 1",
    ],
)
def test_every_way_to_change_a_constant_is_found(change: str) -> None:
    assert CHANGES.search(change)
    assert len(list(changed_constants(f"LIMIT = 1\n{change}\n"))) == 1


@pytest.mark.parametrize(
    "change",
    [
        'monkeypatch.setattr(module, "function", noted)',
        'monkeypatch.setattr(Class, "method", LIMIT)',
        'monkeypatch.setenv("LIMIT", "1")',
        "module.value = LIMIT",
    ],
)
def test_functions_methods_and_variables_of_the_environment_are_no_constants(change: str) -> None:
    assert not list(changed_constants(change))


def test_no_test_changes_a_constant() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}: {name}"
        for path in sorted(TESTS.rglob("*.py"))
        if CHANGES.search(source := path.read_text())
        for line, name in changed_constants(source)
    ]
    assert not found, "give its owner an argument for it: " + ", ".join(found)
