"""The documentation: the OpenAPI document, and Swagger UI from files of this package alone."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from sruserve.server.errors import NoProcess
from sruserve.server.http.call import HttpCall
from sruserve.server.http.errors import RouteNotFound
from sruserve.server.http.observed import answering_errors
from sruserve.server.http.request_head import JSON_TYPE
from sruserve.server.http.routes import Mounted, Reply, Route
from sruserve.server.http.static_files import (
    NOT_MODIFIED,
    StaticFile,
    StaticFiles,
    media_types,
)
from sruserve.server.json_output import json_bytes
from sruserve.server.offload import run_in_thread

_FOLDER = Path(__file__).parent / "swagger_ui"
_ASSETS = "/docs/assets"
_NAMES = ("swagger-ui-bundle.js", "start.js", "swagger-ui.css", "favicon-32x32.png")
_PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>sruserve</title>
<link rel="stylesheet" href="{_ASSETS}/swagger-ui.css">
<link rel="icon" type="image/png" href="{_ASSETS}/favicon-32x32.png">
</head>
<body>
<div id="swagger-ui"></div>
<script src="{_ASSETS}/swagger-ui-bundle.js"></script>
<script src="{_ASSETS}/start.js"></script>
</body>
</html>
""".encode()
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


class Documentation:
    """Serves the page, its files and the OpenAPI document.

    create: creates the document, which takes a while.
    """

    def __init__(self, create: Callable[[], object]) -> None:
        self._create = create
        self._document: asyncio.Task[bytes] | None = None
        self._page = StaticFile(_PAGE, ".html", policy=_POLICY)
        self._files = StaticFiles(_FOLDER, _NAMES)

    async def page(self, call: HttpCall) -> None:
        """Read this documentation."""
        await self._page.send(call)

    async def asset(self, call: HttpCall) -> None:
        """Read a file of this documentation."""
        (name,) = call.path_values
        await self._files.send(call, name)

    async def document(self, call: HttpCall) -> None:
        """Read the OpenAPI document."""
        if self._document is None:
            self._document = asyncio.create_task(self._created())
        await call.reply_as(200, await asyncio.shield(self._document), (JSON_TYPE,))

    async def _created(self) -> bytes:
        """The document, created once on a thread, so that it does not block other requests."""
        try:
            return await run_in_thread("openapi", lambda: json_bytes(self._create()))
        except BaseException:
            self._document = None  # the next request tries again
            raise


Answer = Callable[[Documentation, HttpCall], Coroutine[Any, Any, None]]
_TAG = "documentation"


ROUTES: tuple[Route[Answer], ...] = (
    Route("GET", "/docs", Documentation.page, "docs", _TAG,
        (Reply(media_type="text/html"), NOT_MODIFIED),
    ),
    Route(
        "GET", f"{_ASSETS}/{{name}}", Documentation.asset, "asset", _TAG,
        (*media_types(_NAMES), NOT_MODIFIED), (RouteNotFound,),
    ),
    Route(
        "GET", "/openapi.json", Documentation.document, "openapi", _TAG,
        (Reply(dict[str, Any]),), (NoProcess,),
    ),
)  # fmt: skip


def mount(documentation: Documentation) -> list[Mounted]:
    """The handlers of all routes."""
    return [(route, answering_errors(partial(route.handler, documentation))) for route in ROUTES]
