"""Take the pictures of the page in docs/: `python -m tests.server.http.page.picture`.

Each has in it the digest of the files of the page, so that a test sees whether it is older.
"""

import struct
import zlib
from base64 import b64decode
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from sruserve.server.http import index
from tests.browser import opened
from tests.server.http.page.conftest import Visitor
from tests.server.http.page.test_generating import go_back, wait_drawn, wait_idle, write
from tests.server.http.page.test_tour import IS_SHOWN
from tests.server.processes import serving

DOCS = Path(__file__).parents[4] / "docs"
_FOLDER = Path(index.__file__).parent / "page"
_SIGNATURE_BYTES = 8
_KEYWORD = b"page"


def page_digest() -> str:
    """The digest of all files of the page."""
    files = sorted(_FOLDER.iterdir())
    return sha256(b"".join(file.name.encode() + file.read_bytes() for file in files)).hexdigest()


def digest_in(picture: bytes) -> str:
    """The digest in a picture; empty if there is none."""
    place = _SIGNATURE_BYTES
    while place < len(picture):
        size, kind = struct.unpack_from(">I4s", picture, place)
        content = picture[place + 8 : place + 8 + size]
        if kind == b"tEXt" and content.startswith(_KEYWORD + b"\0"):
            return content.partition(b"\0")[2].decode()
        place += size + 12
    return ""


def _with_digest(picture: bytes) -> bytes:
    """The picture with a text chunk after its header."""
    end = _SIGNATURE_BYTES + 12 + struct.unpack_from(">I", picture, _SIGNATURE_BYTES)[0]
    chunk = b"tEXt" + _KEYWORD + b"\0" + page_digest().encode()
    framed = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return picture[:end] + framed + picture[end:]


def _take(visitor: Visitor, name: str, height: int) -> None:
    screen = {"width": 1120, "height": height, "deviceScaleFactor": 1, "mobile": False}
    visitor.page.call("Emulation.setDeviceMetricsOverride", **screen)
    visitor.evaluate(
        "document.activeElement.blur(); scrollTo(0, 0); document.fonts.ready.then(() => true)"
    )
    visitor.evaluate("new Promise((done) => setTimeout(done, 500))")  # bars move, and end
    picture = visitor.page.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)
    (DOCS / name).write_bytes(_with_digest(b64decode(picture["data"])))


def main() -> None:
    """Take all pictures, on a server of the bundled models."""
    with (
        serving(grpc_port="off", log_format="text") as (client, _),
        TemporaryDirectory() as profile,
        opened("about:blank", Path(profile)) as page,
    ):
        page.call("Emulation.setScrollbarsHidden", hidden=True)
        visitor = Visitor(page, str(client.base_url).rstrip("/"))
        visitor.open()
        visitor.click("#tour-start")
        visitor.wait(IS_SHOWN)
        for _ in range(2):
            visitor.click("#tour-next")
            visitor.wait(IS_SHOWN)
        _take(visitor, "page-tour.png", 710)
        visitor.open("#tag")
        visitor.click("#tag-examples button", "Write to")
        visitor.wait("document.querySelectorAll('#tag-output mark').length === 3")
        visitor.wait("requests.at(-1).body.input === '' && requests.at(-1).reply")
        _take(visitor, "page-tag.png", 840)
        features = [{"name": "prefers-color-scheme", "value": "dark"}]
        page.call("Emulation.setEmulatedMedia", features=features)
        visitor.open()
        write(visitor, prompt="ROMEO:", seed=7, max_tokens=300)
        wait_drawn(visitor, 305)
        go_back(visitor, 121)
        visitor.click(".lane button", "Fork here")
        wait_idle(visitor, 3)
        wait_drawn(visitor, 420)
        _take(visitor, "page-generate.png", 1200)


if __name__ == "__main__":
    main()
