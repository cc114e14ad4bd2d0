"""The directive `errors`: a table of all errors with their codes, from their classes."""

from collections.abc import Iterator

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from sruserve.server.errors import ServeError
from sruserve.server.http.error_mapping import status_of


def all_errors(kind: type[ServeError] = ServeError) -> Iterator[type[ServeError]]:
    """The classes of errors that have a code of their own, in the order of their file."""
    for each in kind.__subclasses__():
        if vars(each).get("code"):
            yield each
        yield from all_errors(each)


class ErrorTable(SphinxDirective):  # type: ignore[misc]
    """One row for each error: its code, HTTP status, class and meaning."""

    def run(self) -> list[nodes.Node]:
        rows = ["| code | status | class | meaning |", "|---|---|---|---|"]
        for error in all_errors():
            meaning = (error.__doc__ or "").partition("\n")[0]
            rows.append(f"| `{error.code}` | {status_of(error)} | `{error.__name__}` | {meaning} |")
        table: list[nodes.Node] = self.parse_text_to_nodes("\n".join(rows))
        return table


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_directive("errors", ErrorTable)
    return {"parallel_read_safe": True}
