"""What the endpoints of KServe over HTTP share: the shape of their errors."""

from sruserve.server.api.call import Call, json_bytes
from sruserve.server.api.endpoint import Endpoint
from sruserve.server.api.kserve.problems import explain
from sruserve.server.errors import ServeError


class KServeEndpoint(Endpoint):
    """An endpoint whose errors are `{"error": text}`: its clients print that text."""

    async def refuse(self, call: Call, problem: ServeError) -> None:
        told = explain(problem)
        await call.refuse_as(problem, told.status, json_bytes({"error": told.message}))
