"""Texts that the engine labels without a run: alone, and with the least around it for a file."""

import asyncio
from collections.abc import Iterable
from itertools import count, islice
from pathlib import Path
from typing import Any

from sruserve.api.local_model import LocalModel
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Result
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.json_output import json_bytes

_TEXTS = 128  # of a job


async def label(model: LocalModel, texts: Iterable[str], jobs: int) -> None:
    """Encode texts, and let the engine label them, so many jobs at a time; nobody reads labels.

    A job's texts are encoded together, as those of a run.
    """
    waiting = iter(texts)

    async def work() -> None:
        while part := list(islice(waiting, _TEXTS)):
            await _label_part(model, part)

    await asyncio.gather(*(work() for _ in range(jobs)))


async def label_file(model: LocalModel, path: Path, output: Path, jobs: int) -> None:
    """Label the lines of a file, and write what a run writes, in its order: the least program.

    No line may be wrong, nothing can be continued, and the event loop waits for the disk.
    """
    labels, following, done = model.served.labels, count(), dict[int, bytes]()
    written = 0
    with path.open("rb") as lines, output.open("wb", buffering=0) as file:

        async def work() -> None:
            nonlocal written
            while part := list(islice(lines, _TEXTS)):
                number = next(following)
                texts = [line.removesuffix(b"\n").decode() for line in part]
                results = await _label_part(model, texts)
                first = number * _TEXTS + 1
                done[number] = b"".join(
                    json_bytes(_described(line, result, labels)) + b"\n"
                    for line, result in enumerate(results, first)
                )
                while written in done:
                    file.write(done.pop(written))
                    written += 1

        await asyncio.gather(*(work() for _ in range(jobs)))


async def _label_part(model: LocalModel, texts: list[str]) -> list[Any]:
    codec, engine = model.with_states.model.codec, model.with_states.engine
    assert codec is not None
    loop = asyncio.get_running_loop()
    results = list[Any]([None] * len(texts))

    def deliver(index: int, result: Result) -> None:
        results[index] = result

    items = list(map(SequenceInput, codec.encode_texts(texts)))
    job = Job(JobKind.CLASSIFY, items, loop, deliver, loop.create_future())
    engine.submit(job)
    await job.done
    return results


def _described(line: int, result: Any, labels: tuple[str, ...]) -> dict[str, Any]:
    scores = result.probabilities.tolist()
    best = max(scores)
    named = dict(zip(labels, scores, strict=True))
    return {"line": line, "label": labels[scores.index(best)], "score": best, "scores": named}
