"""The two kinds of streams of sruserve: states that a client keeps, and streams of the server."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sruserve.check.errors import CheckError
from sruserve.check.protocols.fields import field, segment
from sruserve.check.results import Result
from sruserve.check.samples import Sample
from sruserve.check.server import NumberedStream, Ready, Tokens

if TYPE_CHECKING:
    from sruserve.check.protocols.sruserve import SruserveServer

_IDLE_SECONDS = 300  # of a stream that an interrupted examination leaves


class StateTokens(Tokens):
    """The `state` of a reply, which any replica continues."""

    def __init__(self, server: "SruserveServer") -> None:
        self._server = server

    def step(
        self,
        state: str | None,
        chunk: Sample,
        last: bool,
        replica: int = 0,
        ready: Ready | None = None,
    ) -> tuple[Result, str]:
        server = self._server
        fields: dict[str, Any] = server.more(last)
        if state is not None:
            fields["state"] = state
        if not last:
            fields["return_state"] = True
        body = server.body(chunk, **fields)
        reply = server.replicas[replica].post(server.path, body, ready)
        (entry,) = server.entries(reply)
        return server.result(reply), "" if last else field(entry, "state", str)


class HeldStream(NumberedStream):
    """A stream of `/v1/streams`."""

    def __init__(self, server: "SruserveServer") -> None:
        self._server = server
        body = {"model": server.model, "idle_seconds": _IDLE_SECONDS}
        stream = field(server.replicas[0].post("/v1/streams", body), "id", str)
        self._path = f"/v1/streams/{segment(stream)}"

    def step(
        self, number: int, chunk: Sample, last: bool, replica: int = 0, ready: Ready | None = None
    ) -> Result:
        body = self._server.body(chunk, step=number, **self._server.more(last))
        del body["model"]
        reply = self._server.replicas[replica].post(f"{self._path}/steps", body, ready)
        return self._server.result(reply)

    def close(self) -> None:
        with suppress(CheckError):  # it expires
            self._server.replicas[0].delete(self._path)
