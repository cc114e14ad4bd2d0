"""An endpoint of HTTP."""

from sruserve.server.errors import ServeError
from sruserve.server.http.call import HttpCall
from sruserve.server.tasks.endpoint import Endpoint


class HttpEndpoint(Endpoint[HttpCall]):
    """Refuses as `/v1` does; other protocols over HTTP override that."""

    async def refuse(self, call: HttpCall, problem: ServeError) -> None:
        await call.refuse(problem)
