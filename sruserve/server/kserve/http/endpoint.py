"""The base of KServe's endpoints over HTTP: the shape of their errors."""

from sruserve.server.errors import ServeError
from sruserve.server.http.call import HttpCall
from sruserve.server.http.endpoint import HttpEndpoint
from sruserve.server.json_output import json_bytes
from sruserve.server.kserve.errors import explain


class KServeEndpoint(HttpEndpoint):
    """An endpoint whose errors are `{"error": text}`: its clients print that text."""

    async def refuse(self, call: HttpCall, problem: ServeError) -> None:
        reply = explain(problem)
        await call.refuse_as(problem, reply.status, json_bytes({"error": reply.message}))
