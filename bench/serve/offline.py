"""Texts per second of `sruserve run`, of the bare engine, and of an HTTP server that is fed.

    python -m bench.serve.offline            # about two minutes; needs an idle machine
    python -m bench.serve.offline --quick    # only shows that it runs; its figures mean nothing

All answer the same questions by the bundled classifier, whole inputs without states. The bare
engine gets jobs of 128 texts: they are encoded together, as a run does it, and nobody reads a file,
describes a result or writes one. `with files` does that, too, in the least program that writes a
run's bytes, without waiting for the disk, as a run does at its end. Both have 4 or 16 jobs in
flight, and the better of the two counts. The HTTP server gets one text a request over 64
connections. To load the model and to remove an output does not count.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.report.arguments import command_line
from bench.report.report import Report
from bench.report.samples import Samples, in_turn
from bench.report.targets import Target
from bench.serve.http_client import HttpClient
from bench.serve.labelled import label, label_file
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

_JOBS, _CONNECTIONS = (4, 16), 64
_RUN, _HTTP = "sruserve run", "HTTP, 64 connections"
_ENGINE, _FILES = "the bare engine", "the bare engine with files"


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
        path, output = Path(folder) / "texts", Path(folder) / "out"
        path.write_text("".join(f"{text}\n" for text in texts))
        candidates: dict[str, Callable[[], object]] = {
            _RUN: lambda: _run(model, path, output),
        }
        for jobs in _JOBS:
            candidates |= {
                _named(_ENGINE, jobs): partial(_engine, model, texts, jobs),
                _named(_FILES, jobs): partial(_files, model, path, output, jobs),
            }
        candidates[_HTTP] = lambda: asyncio.run(_http(server.port, texts))
        for call in candidates.values():  # warm up
            output.unlink(missing_ok=True)
            call()
        values: dict[str, list[float]] = {name: [] for name in candidates}
        for turn in range(rounds):
            for name in in_turn(list(candidates), turn):
                report.progress(f"round {turn + 1} of {rounds}: {name}")
                output.unlink(missing_ok=True)
                begin = perf_counter()
                candidates[name]()
                values[name].append(count / (perf_counter() - begin))
    model.loop.run(model.stop())
    samples = {name: Samples(tuple(each), "/s") for name, each in values.items()}
    report.add_case("questions that are labelled", samples)
    for name in (_ENGINE, _FILES):
        best = max((samples[_named(name, jobs)] for jobs in _JOBS), key=lambda each: each.median)
        what, target = f"texts/s of {_RUN} / {name} at its best", Target(minimum=0.95)
        report.check(what, samples[_RUN].over(best).median, "x", target)
    ratio = samples[_RUN].over(samples[_HTTP]).median
    report.check(f"texts/s of {_RUN} / {_HTTP}", ratio, "x", Target(minimum=1.5))
    report.finish(args.results)
    return 0


def _named(candidate: str, jobs: int) -> str:
    return f"{candidate}, {jobs} jobs at a time"


def _run(model: LocalModel, path: Path, to: Path) -> None:
    """Label a file as the command does."""
    output = Output(to)
    with path.open("rb") as file:
        source = Source(file)
        reader = EntryReader("classify", model.served.name, {})
        lines = records(source, Format.LINES, None)
        model.loop.run(Run(model, source, lines, reader, output, {})())
    output.close()


def _engine(model: LocalModel, texts: list[str], jobs: int) -> None:
    """Label the texts, whose labels nobody reads."""
    model.loop.run(label(model, texts, jobs))


def _files(model: LocalModel, path: Path, to: Path, jobs: int) -> None:
    """Label a file by the least program."""
    model.loop.run(label_file(model, path, to, jobs))


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
