"""Docstrings in this project's style, as lists that Sphinx renders.

A paragraph that begins with `name: text` describes arguments or fields, one a line; the lines that
continue one are indented.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_ENTRY = re.compile(r"(?P<names>[a-z]\w*(?:, [a-z]\w*)*): (?P<text>\S.*)")


def described(lines: list[str]) -> list[str]:
    """The lines of a docstring, with a list in place of each paragraph of descriptions."""
    written: list[str] = []
    listing = False
    for line, before in zip(lines, ["", *lines], strict=False):
        entry = _ENTRY.fullmatch(line)
        if entry and (listing or not before.strip()):
            listing = True
            names = ", ".join(f"``{name}``" for name in entry["names"].split(", "))
            written.append(f"* {names}: {entry['text']}")
        elif listing and line.startswith("    "):
            written.append(f"  {line.strip()}")
        else:
            listing = False
            written.append(line)
    return written


def _render(
    _app: "Sphinx", _kind: str, _name: str, _value: object, _options: object, lines: list[str]
) -> None:
    lines[:] = described(lines)


def setup(app: "Sphinx") -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("autodoc-process-docstring", _render)
    return {"parallel_read_safe": True}
