"""`GET /`: a page for browsers, and the names of other routes for programs.

The page is plain files. Its scripts call the same routes as any client. Its first style and script
travel inside of it, so that the first paint waits for one reply alone.
"""

from base64 import b64encode
from collections.abc import Callable, Coroutine
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from sruserve import __version__
from sruserve.server.http.call import HttpCall
from sruserve.server.http.errors import RouteNotFound
from sruserve.server.http.media_range import prefers
from sruserve.server.http.observed import answering_errors
from sruserve.server.http.request_head import JSON_TYPE
from sruserve.server.http.routes import Mounted, Reply, Route
from sruserve.server.http.static_files import NOT_MODIFIED, StaticFile, StaticFiles, media_types
from sruserve.server.json_output import json_bytes

_FOLDER = Path(__file__).parent / "page"
_PAGE, _STYLE, _START = "index.html", "first.css", "start.js"
# What takes the place of a link to a file: the file between two tags.
_INLINED = {
    _STYLE: (f'<link rel="stylesheet" href="/page/{_STYLE}">', "<style>", "</style>"),
    _START: (f'<script src="/page/{_START}"></script>', "<script>", "</script>"),
}
_NAMES = tuple(sorted({file.name for file in _FOLDER.iterdir()} - {_PAGE, *_INLINED}))
_VARY = (b"vary", b"Accept")
_POLICY = (
    "default-src 'none'; script-src 'self' {start.js}; style-src 'self' {first.css}; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_ROUTES = {"documentation": "/docs", "models": "/v1/models", "metrics": "/metrics"}


class Index:
    """Serves the page and its files.

    has_page: if not, `/` is JSON for all clients, and there are no files.
    """

    def __init__(self, has_page: bool) -> None:
        self._routes = json_bytes({"name": "sruserve", "version": __version__, **_ROUTES})
        self._page = _WholePage() if has_page else None
        self._files = StaticFiles(_FOLDER, _NAMES if has_page else (), packed=True)

    async def index(self, call: HttpCall) -> None:
        """Find the other routes.

        Browsers get a page for trying the models, unless `SRUSERVE_PAGE` is off.
        """
        accept = call.header(b"accept") or ""
        if self._page is not None and prefers(accept, "text/html", "application/json"):
            await self._page.send(call)
        else:
            await call.reply_as(200, self._routes, (JSON_TYPE, _VARY))

    async def file(self, call: HttpCall) -> None:
        """Read a file of the page."""
        (name,) = call.path_values
        await self._files.send(call, name)


class _WholePage:
    """The page with the files that it cannot be shown without, and a policy that allows them."""

    def __init__(self) -> None:
        page, policy = (_FOLDER / _PAGE).read_text("utf-8"), _POLICY
        for name, (link, opening, closing) in _INLINED.items():
            content = (_FOLDER / name).read_text("utf-8")
            page = page.replace(link, f"{opening}{content}{closing}")
            digest = b64encode(sha256(content.encode()).digest()).decode()
            policy = policy.replace(f"{{{name}}}", f"'sha256-{digest}'")
        self._file = StaticFile(page.encode(), ".html", packed=True, policy=policy)
        self._headers = (_VARY, (b"referrer-policy", b"no-referrer"))

    async def send(self, call: HttpCall) -> None:
        """Answer with the page, or that the client has it already."""
        await self._file.send(call, self._headers)


Answer = Callable[[Index, HttpCall], Coroutine[Any, Any, None]]

ROUTES: tuple[Route[Answer], ...] = (
    Route(
        "GET", "/", Index.index, "index", "operation",
        (Reply(dict[str, str]), Reply(media_type="text/html"), NOT_MODIFIED),
    ),
    Route(
        "GET", "/page/{file}", Index.file, "page_file", "operation",
        (*media_types(_NAMES), NOT_MODIFIED), (RouteNotFound,),
    ),
)  # fmt: skip


def mount(index: Index) -> list[Mounted]:
    """The handlers of all routes."""
    return [
        (route, answering_errors(partial(route.handler, index), route.path)) for route in ROUTES
    ]
