"""The time to continue a stream from its state, after a million characters and after a few."""

import re
from pathlib import Path
from time import perf_counter

import uvloop

from bench.report.report import Report
from bench.report.samples import Samples, in_turn
from bench.report.targets import Target
from bench.serve.http_client import HttpClient
from bench.serve.models import questions
from bench.serve.processes import sruserve

_CHUNK = 100_000  # characters of one request while the long stream is built
_FRESH, _LONG = "a new stream", "a long one"


def against_fresh(report: Report, folder: Path, characters: int, rounds: int) -> None:
    """Measure the time of a stream's next completion, for a long stream and a new one."""
    with sruserve("sruserve", [folder]) as server:
        report.progress(f"a stream of {characters} characters")
        milliseconds = uvloop.run(_measure(server.port, characters, rounds))
    samples = {name: Samples(tuple(times), "ms") for name, times in milliseconds.items()}
    case = f"16 characters of a stream with {characters:,} behind it"
    report.add_case(case, samples)
    ratio = samples[_LONG].median / samples[_FRESH].median
    report.check(f"{case} / of a new one", ratio, "x", Target(maximum=1.1))


async def _measure(port: int, characters: int, rounds: int) -> dict[str, list[float]]:
    client = await HttpClient.connect(port)
    text = re.sub("[^A-Za-z ,.?\n]", "", "\n".join(questions()))  # the model's characters
    text = (text * (characters // len(text) + 1))[:characters]
    states = {_FRESH: await _score(client, text[:16], None)}
    state: str | None = None
    for start in range(0, characters, _CHUNK):
        state = states[_LONG] = await _score(client, text[start : start + _CHUNK], state)
    milliseconds: dict[str, list[float]] = {name: [] for name in states}
    for turn in range(rounds):
        for name in in_turn(list(states), turn):
            body = {"prompt": "", "max_tokens": 16, "seed": turn, "state": states[name]}
            begin = perf_counter()
            await client.post_json("/v1/completions", body | {"return_state": True})
            milliseconds[name].append((perf_counter() - begin) * 1e3)
    client.close()
    return milliseconds


async def _score(client: HttpClient, text: str, state: str | None) -> str:
    body = {"input": text, "return_state": True}
    reply = await client.post_json("/v1/score", body | ({"state": state} if state else {}))
    end: str = reply["results"][0]["state"]
    return end
