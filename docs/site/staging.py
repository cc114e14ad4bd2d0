"""The sources of the site: copies of the documents, whose links lead to pages of the site."""

import json
import re
import shutil
from functools import partial
from pathlib import Path

from docs.site.links import replace_links
from docs.site.navigation import HOME, ROOT, all_pages, contents, titles

_NO_FILE = re.compile(r"\w+:|#")


class Staging:
    """Writes the source of every page, and its pictures, to a folder.

    repository: the public address of the repository, to which links to other files lead. If it is
        empty, these links are plain text.
    """

    def __init__(self, folder: Path, repository: str) -> None:
        home = HOME.read_text()
        self.folder, self.repository, self.contents = folder, repository, contents(home)
        self.pages, self.titles = all_pages(home), titles(home)

    def write(self) -> None:
        """Write all pages."""
        for source, name in self.pages.items():
            text = notebook(source) if source.suffix == ".ipynb" else source.read_text()
            text = replace_links(text, partial(self._link, source))
            if source == HOME:
                text += f"\n{self.contents}"
            (self.folder / f"{name}.md").write_text(text)

    def _link(self, source: Path, match: re.Match[str]) -> str:
        """A link of a document, as the site has it."""
        shown, target = match["text"], match["target"]
        if _NO_FILE.match(target):
            return match[0]
        path, _, anchor = target.partition("#")
        file = (source.parent / path).resolve()
        place = file.relative_to(ROOT)
        if match["picture"]:
            name = "-".join(place.parts)
            shutil.copy(file, self.folder / name)
            return f"![{shown}]({name})"
        if file in self.pages:
            shown = self.titles[file] if shown.endswith(file.name) else shown
            return f"[{shown}]({self.pages[file]}.md{anchor and '#'}{anchor})"
        kind = "tree" if file.is_dir() else "blob"
        return f"[{shown}]({self.repository}/{kind}/HEAD/{place})" if self.repository else shown


def notebook(source: Path) -> str:
    """The cells of a notebook as a document, without what they printed."""
    parts = []
    for cell in json.loads(source.read_text())["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(parts) + "\n"
