"""Files of this package that browsers load: read once, and sent again only if they differ."""

import gzip
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from sruserve.server.http.call import HttpCall
from sruserve.server.http.errors import RouteNotFound
from sruserve.server.http.media_range import accepts
from sruserve.server.http.routes import Reply

Headers = Iterable[tuple[bytes, bytes]]

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}
# A browser asks for a changed file each time, so that the files of two releases never mix.
_ALWAYS = ((b"cache-control", b"no-cache"), (b"x-content-type-options", b"nosniff"))
# Of a part of a page, which shows and loads nothing when a browser opens it as a page.
_PART = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
NOT_MODIFIED = Reply(
    status=304, media_type="", description="The file has the tag of `If-None-Match`."
)


class _Content:
    """What is sent for a file in one coding, with headers of its own: the tag, for one."""

    def __init__(self, content: bytes, *headers: tuple[bytes, bytes]) -> None:
        self.content = content
        self.etag = f'"{sha256(content).hexdigest()[:32]}"'
        self.headers = (*headers, (b"etag", self.etag.encode()))


class StaticFile:
    """A file with its type.

    packed: clients that accept gzip get it so, packed once. It then varies with what they accept.
    policy: what it may load if it is HTML, as a content security policy.
    """

    def __init__(
        self, content: bytes, suffix: str, packed: bool = False, policy: str = _PART
    ) -> None:
        self._always: tuple[tuple[bytes, bytes], ...] = _ALWAYS
        if suffix == ".html":
            self._always = (*_ALWAYS, (b"content-security-policy", policy.encode()))
        self._type = (b"content-type", _TYPES[suffix].encode())
        self._plain, self._packed = _Content(content), None
        if packed:
            vary = (b"vary", b"Accept-Encoding")
            self._plain = _Content(content, vary)
            small = gzip.compress(content, mtime=0)  # each worker sends the same
            self._packed = _Content(small, vary, (b"content-encoding", b"gzip"))

    async def send(self, call: HttpCall, headers: Headers = ()) -> None:
        """Answer with the file, or that the client has it already."""
        chosen = self._plain
        if self._packed is not None and accepts(call.header(b"accept-encoding") or "", "gzip"):
            chosen = self._packed
        always = [*headers, *self._always, *chosen.headers]
        if chosen.etag in (call.header(b"if-none-match") or ""):
            await call.start(304, always)
            await call.send(b"")
        else:
            await call.reply_as(200, chosen.content, [self._type, *always])


class StaticFiles:
    """Files of one folder, read at creation, so that no path of a request reaches the disk."""

    def __init__(self, folder: Path, names: Iterable[str], packed: bool = False) -> None:
        self._files = {
            name: StaticFile((folder / name).read_bytes(), Path(name).suffix, packed)
            for name in names
        }

    async def send(self, call: HttpCall, name: str) -> None:
        """Answer with the file of a name; raises `RouteNotFound`."""
        file = self._files.get(name)
        if file is None:
            raise RouteNotFound("there is no such file; /docs lists all routes")
        await file.send(call)


def media_types(names: Iterable[str]) -> tuple[Reply, ...]:
    """The replies with files of these names, each type once."""
    types = dict.fromkeys(_TYPES[Path(name).suffix].partition(";")[0] for name in names)
    return tuple(Reply(media_type=media_type) for media_type in types)
