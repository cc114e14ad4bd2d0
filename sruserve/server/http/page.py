"""Long replies that are the same for all clients."""

from hashlib import sha256
from pathlib import Path

from fastapi import Request, Response
from starlette.exceptions import HTTPException

from sruserve.server.http.call import Message, Receive, Send, send_but_last
from sruserve.server.metrics.page import MetricsPage

METRICS = "/metrics"


class Page(Response):
    """A reply that is sent as fast as its client takes it, so that slow ones hold little of it."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Send it, to this client."""
        del scope, receive
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        last = await send_but_last(send, bytes(self.body))
        await send({"type": "http.response.body", "body": last})


async def answer_metrics(page: MetricsPage, send: Send) -> None:
    """Reply to `GET /metrics`, whose readers should not cost others what a page does."""
    text, content_type = await page.read()
    headers = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(text))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    last = await send_but_last(send, text)
    await send({"type": "http.response.body", "body": last})


class Files:
    """A few files of one folder, read when this is made: no path of a request gets to the disk.

    types: the content type of each, by its name.
    """

    def __init__(self, folder: Path, types: dict[str, str]) -> None:
        self._files = {name: _read(folder / name, type_) for name, type_ in types.items()}

    async def answer(self, request: Request) -> Response:
        """Answer a GET or HEAD of `{name}`; 304 if the client has the file."""
        page = self._files.get(request.path_params["name"])
        if page is None:
            raise HTTPException(404)
        etag = page.headers["etag"]
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers={"etag": etag})
        return page


def _read(path: Path, content_type: str) -> Page:
    content = path.read_bytes()
    etag = f'"{sha256(content).hexdigest()[:32]}"'
    return Page(content, headers={"content-type": content_type, "etag": etag})
