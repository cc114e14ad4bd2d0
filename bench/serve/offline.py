"""Texts per second of `sruserve run`, of the bare engine, and of an HTTP server that is fed.

    python -m bench.serve.offline            # about two minutes; needs an idle machine
    python -m bench.serve.offline --quick    # only shows that it runs; its figures mean nothing

All answer the same file of questions by the bundled classifier, whole inputs without states. The
bare engine gets jobs of 128 encoded texts, sixteen at a time, and nobody writes its results. With
four at a time, like a run's, it answers all that wait in one step, and schedules no text by itself.
The HTTP server gets one text a request over 64 connections. Loading the model does not count.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

from bench.report.arguments import command_line
from bench.report.report import Report
from bench.report.samples import Samples, in_turn
from bench.report.targets import NO_TARGET, Target
from bench.serve.http_client import HttpClient
from bench.serve.models import CLASSIFIER, questions
from bench.serve.processes import sruserve
from sruserve.api.local_model import LocalModel
from sruserve.api.local_settings import local_settings
from sruserve.batch.entries import EntryReader
from sruserve.batch.output import Output
from sruserve.batch.process import own_process
from sruserve.batch.records import Format, records
from sruserve.batch.run import Run
from sruserve.batch.source import Source
from sruserve.server.engine.job import Job, JobKind, Result, SequenceInput

_TEXTS, _AT_ONCE, _FEW, _CONNECTIONS = 128, 16, 4, 64
_RUN, _HTTP = "sruserve run", "HTTP, 64 connections"
_ENGINE, _ENGINE_FEW = "the bare engine", "the bare engine, 4 jobs at a time"


def main() -> int:
    parser = command_line("bench.serve.offline", __doc__)
    parser.add_argument("--quick", action="store_true", help="one short round; nothing is stored")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each (default: 7)")
    parser.add_argument("--texts", type=int, default=20_000, help="of the file (default: 20,000)")
    args = parser.parse_args()
    rounds, count = (1, 1000) if args.quick else (args.rounds, args.texts)
    report = Report("offline", ("uvicorn", "uvloop"), args.quick)
    texts = list(islice(cycle(questions()), count))
    model = LocalModel.load(local_settings(CLASSIFIER, device="cpu"))
    # The process of the command is tuned alike.
    with own_process(), TemporaryDirectory() as folder, sruserve("http", [CLASSIFIER]) as server:
        path = Path(folder) / "texts"
        path.write_text("".join(f"{text}\n" for text in texts))
        candidates: dict[str, Callable[[], object]] = {
            _RUN: lambda: _run(model, path),
            _ENGINE: lambda: model.loop.run(_engine(model, texts, _AT_ONCE)),
            _ENGINE_FEW: lambda: model.loop.run(_engine(model, texts, _FEW)),
            _HTTP: lambda: asyncio.run(_http(server.port, texts)),
        }
        for call in candidates.values():  # warm up
            call()
        values: dict[str, list[float]] = {name: [] for name in candidates}
        for turn in range(rounds):
            for name in in_turn(list(candidates), turn):
                report.progress(f"round {turn + 1} of {rounds}: {name}")
                begin = perf_counter()
                candidates[name]()
                values[name].append(count / (perf_counter() - begin))
    model.loop.run(model.stop())
    samples = {name: Samples(tuple(each), "/s") for name, each in values.items()}
    report.add_case("questions that are labelled", samples)
    targets = {_ENGINE: Target(minimum=0.95), _ENGINE_FEW: NO_TARGET, _HTTP: Target(minimum=1.5)}
    for other, target in targets.items():
        ratio = samples[_RUN].over(samples[other]).median
        report.check(f"texts/s of {_RUN} / {other}", ratio, "x", target)
    report.finish(args.results)
    return 0


def _run(model: LocalModel, path: Path) -> None:
    """Label a file as the command does."""
    output = Output(path.with_name("out"))
    with path.open("rb") as file:
        source = Source(file)
        reader = EntryReader("classify", model.served.name, {})
        lines = records(source, Format.LINES, None)
        model.loop.run(Run(model, source, lines, reader, output, {})())
    output.close()
    output.path.unlink()


async def _engine(model: LocalModel, texts: list[str], at_once: int) -> None:
    """Encode the texts, and let the engine label them; nobody describes or writes the labels."""
    codec, engine = model.served.model.codec, model.served.engine
    assert codec is not None
    loop, free = asyncio.get_running_loop(), asyncio.Semaphore(at_once)

    async def label(part: list[str]) -> None:
        async with free:
            items = [SequenceInput(np.asarray(codec.encode(text)[0])) for text in part]
            results = list[Any]([None] * len(items))

            def deliver(index: int, result: Result) -> None:
                results[index] = result

            job = Job(JobKind.CLASSIFY, items, loop, deliver, loop.create_future())
            engine.submit(job)
            await job.done

    parts = [texts[at : at + _TEXTS] for at in range(0, len(texts), _TEXTS)]
    await asyncio.gather(*(label(part) for part in parts))


async def _http(port: int, texts: list[str]) -> None:
    """Ask a server for one text at a time, over many connections."""
    waiting = iter(texts)

    async def connection() -> None:
        client = await HttpClient.connect(port)
        for text in waiting:
            status, reply = await client.post("/v1/classify", json.dumps({"input": text}).encode())
            assert status == 200
            json.loads(reply)
        client.close()

    await asyncio.gather(*(connection() for _ in range(_CONNECTIONS)))


if __name__ == "__main__":
    sys.exit(main())
