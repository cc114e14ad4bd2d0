"""Lists of models as gRPC's messages."""

import asyncio
from typing import Any

from google.protobuf.json_format import ParseDict
from tritonclient.grpc import service_pb2 as proto

from sruserve.server.kserve.grpc.service import write_json
from sruserve.server.kserve.statistics import Statistics


def test_each_model_of_a_list_is_written_in_a_turn_of_its_own() -> None:
    models = [Statistics().describe(f"model {number}", "1") for number in range(30)]
    reply: dict[str, Any] = {"model_stats": models}
    written = proto.ModelStatisticsResponse()

    async def sizes_between_turns() -> list[int]:
        writing = asyncio.create_task(write_json(reply, written))
        sizes = []
        while not writing.done():
            await asyncio.sleep(0)
            sizes.append(len(written.model_stats))
        return sizes

    sizes = asyncio.run(sizes_between_turns())
    assert set(range(1, 31)) <= set(sizes)
    assert written == ParseDict(reply, proto.ModelStatisticsResponse(), ignore_unknown_fields=True)
