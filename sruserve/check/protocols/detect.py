"""Which protocol a server speaks, asked of the server itself."""

from collections.abc import Callable, Sequence
from typing import Any

from sruserve.check.errors import Misuse, Refused
from sruserve.check.protocols.kserve import KServeServer
from sruserve.check.protocols.openai import OpenAiServer
from sruserve.check.protocols.sruserve import SruserveServer
from sruserve.check.server import Server
from sruserve.check.transport import Transport

Open = Callable[[Sequence[Transport], str | None], Server]
PROTOCOLS: dict[str, Open] = {
    "openai": OpenAiServer.open,
    "kserve": KServeServer.open,
    "sruserve": SruserveServer.open,
}


def detect(server: Transport) -> str:
    """The name of the protocol: sruserve's own, else KServe's, else OpenAI's."""
    models = _ask(server, "/v1/models")
    data = models.get("data") if isinstance(models, dict) else None
    if isinstance(data, list) and any(_is_ours(entry) for entry in data):
        return "sruserve"
    metadata = _ask(server, "/v2")
    if isinstance(metadata, dict) and "extensions" in metadata:
        return "kserve"
    if isinstance(data, list):
        return "openai"
    raise Misuse(
        f"{server.address} speaks no protocol that can be recognised; name one with --protocol "
        f"({', '.join(PROTOCOLS)})"
    )


def _ask(server: Transport, path: str) -> Any:
    """The JSON of a path, or None where there is none."""
    try:
        return server.get(path)
    except Refused as error:
        if error.status in (401, 403):
            raise
        return None


def _is_ours(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("owned_by") == "sruserve"
