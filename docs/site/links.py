"""The links of a document: whether they lead somewhere, and where they lead in the site."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

_CODE = re.compile(r"(^ *```.*?^ *```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>(?:[^][]|\[[^]]*\])*)\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
_ELSEWHERE = re.compile(r"\w+:")


def _prose(text: str) -> Iterator[tuple[bool, str]]:
    """The parts of a document, each with whether it is prose; the others are code."""
    for number, part in enumerate(_CODE.split(text)):
        yield number % 2 == 0, part


def replace_links(text: str, replace: Callable[[re.Match[str]], str]) -> str:
    """The document with other links. A match has the groups `picture`, `text` and `target`.

    A text in backticks is code, and a link whose text is code is a link.
    """
    codes: list[str] = []
    parts = []
    for is_prose, part in _prose(text):
        if not is_prose:
            codes.append(part)
        parts.append(part if is_prose else f"\0{len(codes) - 1}\0")
    replaced = _LINK.sub(replace, "".join(parts))
    return re.sub(r"\0(\d+)\0", lambda match: codes[int(match[1])], replaced)


def link_targets(text: str) -> list[str]:
    """The targets of the links that lead to this repository."""
    targets: list[str] = []

    def note(match: re.Match[str]) -> str:
        targets.append(match["target"])
        return match[0]

    replace_links(text, note)
    return [target for target in targets if not _ELSEWHERE.match(target)]


@cache
def anchors(document: Path) -> frozenset[str]:
    """The anchors of a document's headings, as GitHub and the site name them."""
    text = re.sub(r"(?ms)^ *```.*?^ *```", "", document.read_text())
    names: list[str] = []
    for heading in _HEADING.findall(text):
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        same = sum(re.fullmatch(rf"{re.escape(name)}(-\d+)?", each) is not None for each in names)
        names.append(f"{name}-{same}" if same else name)
    return frozenset(names)


def broken_links(document: Path) -> list[str]:
    """The links of a document that lead to no file, or to no heading of one."""
    broken = []
    for target in link_targets(document.read_text()):
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        known = anchors(file) if anchor and file.suffix == ".md" and file.is_file() else ()
        if not file.exists() or (anchor and anchor not in known):
            broken.append(target)
    return broken
