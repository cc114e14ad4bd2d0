"""The navigation of the site is that of docs/index.md."""

from docs.site.navigation import HOME, ROOT, all_pages, contents, left_out, page_name, sections

HOME_TEXT = """# Title

- [Not in a section](batch.md)

## Use

Read [this](settings.md) first.

- [Routes](http.md): all, and [streams](streams.md).
- [Overview](../README.md)

## Empty

## Inside

- [Results](../bench/results/README.md#tables)
"""


def test_a_section_has_the_first_link_of_each_item() -> None:
    shown = {
        title: [(entry.title, entry.page) for entry in entries]
        for title, entries in sections(HOME_TEXT.replace("- [Not", "[Not")).items()
    }
    assert shown == {"Use": [("Routes", "http"), ("Overview", "overview")]}


def test_the_site_gets_a_list_of_pages_for_each_section() -> None:
    assert contents("## A\n\n- [B](batch.md)\n- [C](http.md)\n").splitlines() == [
        "```{toctree}", ":hidden:", ":caption: A", "", "B <batch>", "C <http>", "```",
    ]  # fmt: skip


def test_a_document_that_the_home_page_does_not_list_is_left_out() -> None:
    home = HOME.read_text()
    assert left_out(home) == []
    assert left_out(home.replace("](batch.md)", "](http.md)")) == ["batch.md"]


def test_no_two_files_have_the_same_page() -> None:
    pages = all_pages(HOME.read_text())
    assert len(set(pages.values())) == len(pages)
    assert page_name(ROOT / "CHANGELOG.md") == "changelog"
