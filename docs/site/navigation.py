"""The pages of the site, in the order of the lists in docs/index.md."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = ROOT / "docs/index.md"

_SECTION = re.compile(r"^## (?P<title>.+)$|^- \[(?P<name>[^]]+)\]\((?P<target>[^)#]+)\)", re.M)


@dataclass(frozen=True)
class Entry:
    """A page in the navigation.

    title: as docs/index.md names it. source: the file that it shows. page: its name in the site.
    """

    title: str
    source: Path

    @property
    def page(self) -> str:
        return page_name(self.source)


def page_name(source: Path) -> str:
    """The name of a file's page, without a suffix.

    Files of docs/ keep their names. A README is named for its folder.
    """
    relative = source.relative_to(ROOT)
    if relative.stem != "README":
        return relative.stem.lower().replace("_", "-")
    return "-".join(relative.parent.parts) or "overview"


def sections(home: str) -> dict[str, list[Entry]]:
    """The entries of each section: the first link of each item of its list."""
    by_title: dict[str, list[Entry]] = {}
    for match in _SECTION.finditer(home):
        if match["title"]:
            entries = by_title.setdefault(match["title"], [])
        else:
            entries.append(Entry(match["name"], (HOME.parent / match["target"]).resolve()))
    return {title: entries for title, entries in by_title.items() if entries}


def all_pages(home: str) -> dict[Path, str]:
    """The name of the page of each file that the site shows."""
    return {HOME: "index"} | {entry.source: entry.page for entry in _entries(home)}


def titles(home: str) -> dict[Path, str]:
    """The title in the navigation of each file that the site shows."""
    return {HOME: "Documentation"} | {entry.source: entry.title for entry in _entries(home)}


def left_out(home: str) -> list[str]:
    """The files of docs/ that docs/index.md does not list."""
    listed = all_pages(home)
    return [path.name for path in sorted(HOME.parent.glob("*.md")) if path not in listed]


def contents(home: str) -> str:
    """The directives that put the sections into the site's navigation."""
    blocks = []
    for title, entries in sections(home).items():
        lines = "\n".join(f"{entry.title} <{entry.page}>" for entry in entries)
        blocks.append(f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n{lines}\n```\n")
    return "\n".join(blocks)


def _entries(home: str) -> list[Entry]:
    return [entry for section in sections(home).values() for entry in section]
