"""The sources of the site have links that work in it."""

import re
from pathlib import Path

import pytest

from docs.site.navigation import HOME, all_pages
from docs.site.staging import Staging


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    Staging(tmp_path, "").write()
    return tmp_path


def read(folder: Path, page: str) -> str:
    return (folder / f"{page}.md").read_text()


def test_every_page_has_a_source_whose_links_lead_to_sources(sources: Path) -> None:
    pages = all_pages(HOME.read_text()).values()
    assert {path.stem for path in sources.glob("*.md")} == set(pages)
    for page in pages:
        prose = re.sub(r"(?ms)^ *```.*?^ *```|`[^`\n]+`", "", read(sources, page))
        for target in re.findall(r"\]\(([^)#\s]+)", prose):
            assert ":" in target or (sources / target).is_file(), f"{page} links to {target}"


def test_a_link_to_a_file_that_is_no_page_is_text_or_leads_to_the_repository(
    sources: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert "[scripts" not in read(sources, "security")
    assert "](../tests" not in read(sources, "security")
    public = tmp_path_factory.mktemp("public")
    Staging(public, "https://example.org/sruserve").write()
    links = re.findall(r"\]\((https://example.org/[^)]*)\)", read(public, "security"))
    assert "https://example.org/sruserve/blob/HEAD/tests/model/test_weights.py" in links
    assert "https://example.org/sruserve/tree/HEAD/examples/onnx/web" in read(public, "onnx")


def test_a_link_that_shows_the_name_of_a_file_shows_the_title_of_its_page(sources: Path) -> None:
    overview = read(sources, "overview")
    assert "([Security](security.md))" in overview
    assert "docs/security.md]" not in overview


def test_a_notebook_is_a_page_of_its_texts_and_programs(sources: Path) -> None:
    page = read(sources, "classify-as-you-type")
    assert page.startswith("# Classify as you type\n")
    assert "```python\nimport sruserve\n" in page
