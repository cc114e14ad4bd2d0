"""Links of the documents lead somewhere, and names in them exist in the code."""

import re
from pathlib import Path

import pytest

import sruserve
from docs.site.links import broken_links
from docs.site.navigation import HOME, all_pages, left_out

ROOT = Path(__file__).parent.parent
# Not the folders that builds and linters make, perhaps at this moment.
FOLDERS = ("bench", "deploy", "docs", "examples", "sruserve", "tests")
PATHS = [
    f"/{path}"
    for paths in (ROOT.glob("*.*"), *((ROOT / folder).rglob("*.*") for folder in FOLDERS))
    for path in paths
]


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
    source = "\n".join(path.read_text() for path in (ROOT / "sruserve").rglob("*.py"))
    words = set(re.findall(r"\w+", source))
    for name, member in names:
        assert name in words
        for part in member.split(".")[1:]:
            assert part in words, f"{name}{member}"


def test_every_link_of_a_document_leads_to_a_file_and_a_heading() -> None:
    documents = [path for path in all_pages(HOME.read_text()) if path.suffix == ".md"]
    assert ROOT / "README.md" in documents
    broken = {path.name: links for path in documents if (links := broken_links(path))}
    assert broken == {}


def test_the_home_page_lists_every_document() -> None:
    assert left_out(HOME.read_text()) == []


def test_the_reference_has_every_public_name() -> None:
    page = (ROOT / "docs/api.md").read_text()
    names = re.findall(r"^\.\. auto\w+:: sruserve\.(\w+)(?:\(\))?$", page, re.MULTILINE)
    assert sorted(names) == sruserve.__all__
