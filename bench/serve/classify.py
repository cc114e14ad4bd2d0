"""Questions per second of our server and of mosec, with the same model and the same batch limit."""

import json
import math
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import NamedTemporaryFile

from bench.report.report import Report
from bench.report.samples import Samples, in_turn
from bench.report.targets import NO_TARGET, Target
from bench.serve.load import measure
from bench.serve.models import questions
from bench.serve.processes import Server, answers, sruserve
from sruserve.model.folder import load_model

PATH = "/v1/classify"
MAX_BATCH_SIZE = 64
MODEL_VARIABLE = "BENCH_MODEL"  # the folder that the peer's workers load
TUNED_VARIABLE = "BENCH_TUNED"  # if set, they use msgspec for JSON
_OURS = ("sruserve", "sruserve, batches of 64", "sruserve, 2 workers")
_PEERS = ("mosec", "mosec, tuned")  # with its defaults; with a much faster JSON library


def against_mosec(
    report: Report, folder: Path, connections: Sequence[int], rounds: int, seconds: int
) -> None:
    """Measure requests/s and latency of all servers, which run together and get load in turn."""
    with ExitStack() as stack:
        bodies = stack.enter_context(NamedTemporaryFile("w", suffix=".jsonl"))
        bodies.writelines(json.dumps({"input": text}) + "\n" for text in questions())
        bodies.flush()
        servers = []
        for server in _servers(folder):
            report.progress(f"starting {server.name}")
            servers.append(stack.enter_context(server))
            measure(server.port, PATH, Path(bodies.name), max(connections), seconds)  # warm up
        values: dict[tuple[str, int, str], list[float]] = defaultdict(list)
        by_name = {server.name: server for server in servers}
        for turn in range(rounds):
            for count in connections:
                for name in in_turn(list(by_name), turn):
                    report.progress(f"round {turn + 1} of {rounds}: {count} connections, {name}")
                    load = measure(by_name[name].port, PATH, Path(bodies.name), count, seconds)
                    values[name, count, "requests/s"].append(load.requests_per_second)
                    values[name, count, "p50"].append(load.p50_ms)
                    values[name, count, "p99"].append(load.p99_ms)
    for count in connections:
        for figure in ("requests/s", "p50", "p99"):
            unit = "/s" if figure == "requests/s" else "ms"
            samples = {name: Samples(tuple(values[name, count, figure]), unit) for name in by_name}
            report.add_case(f"classify, {count} connections: {figure}", samples)
            _check(report, count, figure, samples)


def _check(report: Report, count: int, figure: str, samples: dict[str, Samples]) -> None:
    """Check ours against mosec with its defaults; report the tuned one without a target."""
    if figure not in (("p50",) if count == 1 else ("requests/s", "p99")):
        return
    for peer in _PEERS:
        for name in _OURS:
            target = _target(name, count, figure) if peer == _PEERS[0] else NO_TARGET
            label = f"classify, {count} connections: {figure} of {name} / {peer}"
            report.check(label, samples[name].over(samples[peer]).median, "x", target)


def _target(name: str, count: int, figure: str) -> Target:
    """What ours should be in units of the peer's figure."""
    if figure == "p50":
        return Target(maximum=0.15)
    if figure == "p99":
        return Target(maximum=1)
    return Target(minimum=1 if count == 128 and name != _OURS[2] else 1.5)


def _servers(folder: Path) -> list[Server]:
    tokens = str(matching_batch_tokens(folder))
    return [
        sruserve(_OURS[0], [folder]),
        sruserve(_OURS[1], [folder], {"SRUSERVE_MAX_BATCH_TOKENS": tokens}),
        sruserve(_OURS[2], [folder], {"SRUSERVE_WORKERS": "2"}),
        _mosec(_PEERS[0], folder, {}),
        _mosec(_PEERS[1], folder, {TUNED_VARIABLE: "1"}),
    ]


def matching_batch_tokens(folder: Path) -> int:
    """Return the tokens of `MAX_BATCH_SIZE` questions: our server limits the tokens of a step."""
    codec = load_model(folder).codec
    assert codec is not None
    texts = questions()
    return math.ceil(MAX_BATCH_SIZE * sum(len(codec.encode(t)[0]) for t in texts) / len(texts))


def _mosec(name: str, folder: Path, environment: Mapping[str, str]) -> Server:
    question = json.dumps({"input": questions()[0]}).encode()

    def command(port: int) -> list[str]:
        options = ["--address", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
        return [sys.executable, "-m", "bench.serve.peer_server", *options]

    def ready(port: int) -> bool:
        return answers(port, "POST", PATH, question)

    # One thread: with more, the worker competes with mosec's front end for the cores.
    variables = {MODEL_VARIABLE: os.fspath(folder), "OMP_NUM_THREADS": "1", **environment}
    return Server(name, command, ready, variables)
