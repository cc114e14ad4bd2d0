"""The engine without HTTP: concurrent completions whose text nobody reads.

`python -m bench.serve.bare_engine FOLDER` prints a line when it is ready. For every input line
`STREAMS TOKENS` it runs STREAMS completions of TOKENS tokens at once, and prints their number of
characters and the seconds.
"""

import asyncio
import gc
import sys
from pathlib import Path
from time import perf_counter

import uvloop

from sruserve.model.folder import load_model
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Generated, Result
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.metrics.metrics import EngineMetrics

PROMPT = "ROMEO:"


async def _complete(engine: Engine, streams: int, tokens: int) -> tuple[int, float]:
    """Run `streams` completions of `tokens` tokens; returns characters and seconds."""
    codec = engine.model.codec
    assert codec is not None
    loop = asyncio.get_running_loop()
    characters = 0

    def deliver(_: int, piece: Result) -> None:
        nonlocal characters
        assert isinstance(piece, Generated)
        characters += len(piece.text)

    ids = codec.encode(PROMPT)[0]
    begin = perf_counter()
    jobs = [
        Job(
            JobKind.GENERATE,
            [SequenceInput(ids, seed=seed)],
            loop,
            deliver,
            loop.create_future(),
            stream=True,
            sampling=Sampling(max_tokens=tokens),
        )
        for seed in range(streams)
    ]
    for job in jobs:
        engine.submit(job)
    await asyncio.gather(*(job.done for job in jobs))
    return characters, perf_counter() - begin


def _main(folder: Path) -> None:
    model = load_model(folder)
    engine = Engine(model, EngineConfig(), EngineMetrics(model.name))
    engine.start()
    gc.collect()
    gc.freeze()  # like the server
    print("ready", flush=True)
    for line in sys.stdin:
        streams, tokens = map(int, line.split())
        print(*uvloop.run(_complete(engine, streams, tokens)), flush=True)
    engine.stop(0)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
