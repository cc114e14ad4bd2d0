"""Whether a built site works without a network: what its files load from other hosts."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

_LOADED = {"action", "data", "poster", "src", "srcset"}  # attributes
_FOR_READERS = {"author", "canonical", "index", "next", "prev", "search"}  # kinds of `link`
_ADDRESS = re.compile(r"(?:https?:)?//", re.IGNORECASE)
_IN_STYLES = re.compile(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^'\")\s]+)", re.IGNORECASE)


class _Page(HTMLParser):
    """Collects the addresses that a page loads without a click."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.loaded += [value for name, value in values.items() if name in _LOADED]
        if tag == "link" and not _FOR_READERS & set(values.get("rel", "").split()):
            self.loaded.append(values.get("href", ""))


def foreign_addresses(name: str, text: str) -> list[str]:
    """The addresses of other hosts that a file loads, in its elements and its styles."""
    page = _Page()
    if name.endswith((".html", ".svg")):
        page.feed(text)
    loaded = [address for address in page.loaded if _ADDRESS.match(address)]
    return loaded + _IN_STYLES.findall(text)


def foreign_loads(site: Path) -> Iterator[str]:
    """`FILE loads ADDRESS` for each address of another host."""
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css", ".svg"):
            for address in foreign_addresses(path.name, path.read_text()):
                yield f"{path.relative_to(site)} loads {address}"
