"""Who may import whom."""

import ast
import re
import sys
from pathlib import Path

import pytest

from sruserve.model.cells import FAMILIES

PACKAGE = Path(__file__).parent.parent / "sruserve"
LAYERS = ("kernels", "model", "export", "server")
FILES = sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """All that a file imports, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{path} imports relatively"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def own(path: Path) -> set[str]:
    """What a file imports from this package."""
    return {name for name in imported(path) if name.startswith("sruserve.")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_from_server_to_export_to_model_to_kernels(path: Path) -> None:
    layer = path.relative_to(PACKAGE).parts[0]
    if layer not in LAYERS:
        return
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    for name in own(path):
        assert name.split(".")[1] in (*allowed, "__version__"), f"{path} imports {name}"


@pytest.mark.parametrize(
    "path", sorted((PACKAGE / "server/engine").glob("*.py")), ids=lambda path: path.name
)
def test_the_engine_never_imports_the_http_edge(path: Path) -> None:
    for name in imported(path):
        if name.startswith("sruserve.server."):
            assert name.split(".")[2] in ("engine", "errors", "offload"), f"{path} imports {name}"


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if "server" in path.parts or path.name.startswith("cli")],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_neither_the_server_nor_the_command_line_knows_a_family(path: Path) -> None:
    names = FAMILIES.keys() - {"rnn"}  # what a config calls any stack
    families = "|".join([*names, "sru\\+\\+", "olrn", "sru[a-z]*layer"])
    assert not re.search(rf"(?<![\w-])({families})(?![\w-])", path.read_text(), re.IGNORECASE)


KERNELS = sorted((PACKAGE / "kernels").glob("*.py"))


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
def test_kernels_import_nothing_but_torch_triton_and_the_standard_library(path: Path) -> None:
    for name in imported(path):
        outside = name.split(".")[0] in {"torch", "triton", *sys.stdlib_module_names}
        assert outside or f"{name}.".startswith("sruserve.kernels."), f"{path} imports {name}"
    assert "numpy" not in path.read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_triton_kernels_import_triton(path: Path) -> None:
    """Nothing else needs it: a server without a GPU runs where Triton cannot be had."""
    if path.parent.name == "kernels" and path.name.startswith("triton_"):
        return
    assert not any(name.split(".")[0] == "triton" for name in imported(path)), path
    top = ast.parse(path.read_text()).body
    names = {node.module for node in top if isinstance(node, ast.ImportFrom) and node.module}
    assert not any(".triton_" in name for name in names), f"{path} imports a kernel at its top"
