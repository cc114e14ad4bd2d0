"""The base of all endpoints over HTTP."""

from sruserve.server.errors import ServeError
from sruserve.server.http.call import HttpCall
from sruserve.server.tasks.endpoint import Endpoint


class HttpEndpoint(Endpoint[HttpCall]):
    """Sends errors in the shape of `/v1`; other protocols override `refuse`."""

    async def refuse(self, call: HttpCall, problem: ServeError) -> None:
        await call.refuse(problem)
