"""`POST /v1/embeddings`: vectors in OpenAI's shape."""

from binascii import b2a_base64
from typing import Any

from numpy.typing import NDArray

from sruserve.server.http.v1 import PerInputEndpoint
from sruserve.server.json_output import json_bytes, long_json
from sruserve.server.repository.served import Served
from sruserve.server.tasks.per_input import Results
from sruserve.server.tasks.requests import EmbedRequest


class EmbeddingEndpoint(PerInputEndpoint[EmbedRequest]):
    """Replies with the vectors as numbers or in base64."""

    def _body(self, number: str, request: EmbedRequest, served: Served, results: Results) -> bytes:
        del number
        data = []
        for index, (item, result) in enumerate(results.results):
            described = self._per_input.describe(served, item, result)
            if request.encoding_format == "base64" and result.vector is not None:
                described["embedding"] = encoded(result.vector)
            if request.state_wanted_by is None:
                del described["state"]
            data.append({"object": "embedding", "index": index} | described)
        body = {
            "object": "list",
            "data": data,
            "model": served.name,
            "usage": {"prompt_tokens": results.steps, "total_tokens": results.steps},
        }
        return (long_json if results.large else json_bytes)(body)


def encoded(vector: NDArray[Any]) -> str:
    """The base64 of a vector's numbers as little-endian float32."""
    return b2a_base64(vector.astype("<f4").tobytes(), newline=False).decode()
