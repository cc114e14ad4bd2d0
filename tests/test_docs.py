"""The names in the docs for developers exist in the code."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PATHS = [f"/{path}" for path in ROOT.rglob("*.*") if ".venv" not in path.parts]
SOURCE = "\n".join(path.read_text() for path in (ROOT / "sruserve").rglob("*.py"))


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_files_that_docs_name_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    files = re.findall(r"`((?:[a-z_]\w*/)*[a-z_]\w*\.(?:py|c|h|lua))\b[^`]*`", text)
    assert files
    assert [file for file in files if not any(path.endswith(f"/{file}") for path in PATHS)] == []


def test_classes_and_their_members_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    names = re.findall(r"`([A-Z][a-z]\w*)((?:\.\w+)*)`", text)
    assert names
    for name, member in names:
        assert re.search(rf"\b{name}\b", SOURCE), name
        for part in member.split(".")[1:]:
            assert re.search(rf"\b{part}\b", SOURCE), f"{name}{member}"
