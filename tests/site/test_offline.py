"""What a page loads from other hosts is found; what its readers may follow is not."""

from pathlib import Path

import pytest

from docs.site.offline import foreign_loads


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.html", '<script src="https://example.org/a.js"></script>'),
        ("page.html", '<img src="//example.org/a.png">'),
        ("page.html", '<link rel="stylesheet" href="https://example.org/a.css">'),
        ("page.html", "<style>@import 'https://example.org/a.css';</style>"),
        ("site.css", "a { background: url(http://example.org/a.png) }"),
    ],
    ids=["script", "picture", "style sheet", "import", "background"],
)
def test_an_address_of_another_host_is_found(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    (message,) = foreign_loads(tmp_path)
    assert message.startswith(f"{name} loads ")
    assert "example.org/a." in message


def test_links_and_own_files_are_no_loads(tmp_path: Path) -> None:
    page = '<a href="https://example.org">a</a><script src="_static/a.js"></script>'
    page += (
        '<link rel="next" href="https://example.org"><style>a { background: url(a.png) }</style>'
    )
    (tmp_path / "page.html").write_text(page)
    assert list(foreign_loads(tmp_path)) == []
