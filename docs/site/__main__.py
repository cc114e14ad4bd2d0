"""Build the documentation: `python -m docs.site` writes it to site/.

Warnings are errors. So are links that lead nowhere, documents that docs/index.md leaves out, and
what a page would load from another host.
"""

import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from sphinx.cmd.build import build_main

from docs.site.links import broken_links
from docs.site.navigation import HOME, ROOT, all_pages, left_out
from docs.site.offline import foreign_loads
from docs.site.staging import Staging

SITE = ROOT / "site"


def wrong_documents() -> Iterator[str]:
    """What is wrong with the documents, before anything is built."""
    home = HOME.read_text()
    for name in left_out(home):
        yield f"docs/index.md does not list {name}"
    for source in all_pages(home):
        if source.suffix == ".md":
            for target in broken_links(source):
                yield f"{source.relative_to(ROOT)} links to {target}, which is not there"


def build() -> bool:
    """Build the site from nothing; False: Sphinx has said what is wrong."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shutil.rmtree(SITE, ignore_errors=True)
    with TemporaryDirectory() as folder:
        sources, trees = Path(folder, "sources"), Path(folder, "trees")
        sources.mkdir()
        Staging(sources, project["tool"]["sruserve"]["repository"].rstrip("/")).write()
        options = ["--fail-on-warning", "--quiet", "--doctree-dir", str(trees)]
        options += ["--conf-dir", str(Path(__file__).parent)]
        status: int = build_main([*options, str(sources), str(SITE)])
    return status == 0


def main() -> int:
    """Build the site, and return the exit status."""
    problems = list(wrong_documents())
    if not problems:
        if not build():
            return 1
        problems = list(foreign_loads(SITE))
    print("\n".join(problems) or f"Open {SITE / 'index.html'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
