"""Broken links of documents are found, and whole ones are not."""

from pathlib import Path

import pytest

from docs.site.links import broken_links, link_targets, replace_links


@pytest.fixture
def other(tmp_path: Path) -> Path:
    text = "# A page\n\n## On a `GPU`: yes\n\n## Twice\n\n## Twice\n\n```sh\n## no heading\n```\n"
    (tmp_path / "other.md").write_text(text)
    return tmp_path / "page.md"


@pytest.mark.parametrize(
    "target",
    ["other.md", "other.md#on-a-gpu-yes", "other.md#twice-1", "#here", "https://example.org/#no"],
)
def test_a_link_to_a_file_a_heading_or_another_host_is_whole(other: Path, target: str) -> None:
    other.write_text(f"# Here\n\n[text]({target})\n")
    assert broken_links(other) == []


@pytest.mark.parametrize(
    "target",
    ["none.md", "other.md#twice-2", "other.md#no-heading", "#there", "none/", "none.md#twice"],
)
def test_a_link_to_no_file_or_to_no_heading_is_broken(other: Path, target: str) -> None:
    other.write_text(f"# Here\n\n[a `text` with [brackets]]({target}) and ![a picture](none.png)\n")
    assert broken_links(other) == [target, "none.png"]


def test_code_has_no_links() -> None:
    text = "`[a](b.md)` and [`c`](d.md)\n\n```\n[e](f.md)\n```\n\n[g](h.md)\n"
    assert link_targets(text) == ["d.md", "h.md"]
    replaced = replace_links(text, lambda match: f"<{match['text']}>")
    assert replaced == "`[a](b.md)` and <`c`>\n\n```\n[e](f.md)\n```\n\n<g>\n"
