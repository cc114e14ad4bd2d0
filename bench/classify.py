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

from bench.load import measure
from bench.models import questions
from bench.processes import Server, answers, sruserve
from bench.report import Report
from bench.samples import Samples, in_turn
from bench.targets import TOLD, Target
from sruserve.model.folder import load_model

PATH = "/v1/classify"
MAX_BATCH_SIZE = 64
MODEL_VARIABLE = "BENCH_MODEL"  # tells the peer's workers which folder to load
TUNED_VARIABLE = "BENCH_TUNED"  # tells them to code JSON by msgspec
_OURS = ("sruserve", "sruserve, batches of 64", "sruserve, 2 workers")
_PEERS = ("mosec", "mosec, tuned")  # as it comes; with a JSON coder many times faster


def against_mosec(
    report: Report, folder: Path, connections: Sequence[int], rounds: int, seconds: int
) -> None:
    """Requests/s and latency of all servers, which run at the same time and are asked in turns."""
    with ExitStack() as stack:
        bodies = stack.enter_context(NamedTemporaryFile("w", suffix=".jsonl"))
        bodies.writelines(json.dumps({"input": text}) + "\n" for text in questions())
        bodies.flush()
        servers = []
        for server in _servers(folder):
            report.doing(f"starting {server.name}")
            servers.append(stack.enter_context(server))
            measure(server.port, PATH, Path(bodies.name), max(connections), seconds)  # warm
        found: dict[tuple[str, int, str], list[float]] = defaultdict(list)
        by_name = {server.name: server for server in servers}
        for turn in range(rounds):
            for count in connections:
                for name in in_turn(list(by_name), turn):
                    report.doing(f"round {turn + 1} of {rounds}: {count} connections, {name}")
                    load = measure(by_name[name].port, PATH, Path(bodies.name), count, seconds)
                    found[name, count, "requests/s"].append(load.requests_per_second)
                    found[name, count, "p50"].append(load.p50_ms)
                    found[name, count, "p99"].append(load.p99_ms)
    for count in connections:
        for figure in ("requests/s", "p50", "p99"):
            unit = "/s" if figure == "requests/s" else "ms"
            samples = {name: Samples(tuple(found[name, count, figure]), unit) for name in by_name}
            report.measured(f"classify, {count} connections: {figure}", samples)
            _check(report, count, figure, samples)


def _check(report: Report, count: int, figure: str, samples: dict[str, Samples]) -> None:
    """Hold ours against mosec as it comes; the tuned one is told beside it."""
    targets = {"p50": Target(most=0.2)} if count == 1 else {
        "requests/s": Target(least=1), "p99": Target(most=1)
    }  # fmt: skip
    if figure not in targets:
        return
    for peer, target in zip(_PEERS, (targets[figure], TOLD), strict=True):
        for name in _OURS:
            what = f"classify, {count} connections: {figure} of {name} / {peer}"
            report.check(what, samples[name].over(samples[peer]).median, "x", target)


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
    """As many tokens as `MAX_BATCH_SIZE` questions have: our server bounds a step by tokens."""
    codec = load_model(folder).codec
    assert codec is not None
    texts = questions()
    return math.ceil(MAX_BATCH_SIZE * sum(len(codec.encode(t)[0]) for t in texts) / len(texts))


def _mosec(name: str, folder: Path, environment: Mapping[str, str]) -> Server:
    question = json.dumps({"input": questions()[0]}).encode()

    def command(port: int) -> list[str]:
        options = ["--address", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
        return [sys.executable, "-m", "bench.peer_server", *options]

    def ready(port: int) -> bool:
        return answers(port, "POST", PATH, question)

    # One thread: with more, the worker fights with mosec's own front for the cores.
    variables = {MODEL_VARIABLE: os.fspath(folder), "OMP_NUM_THREADS": "1", **environment}
    return Server(name, command, ready, variables)
