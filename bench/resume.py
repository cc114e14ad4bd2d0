"""How long a stream takes to go on from its state, a million characters behind it or none."""

import re
from pathlib import Path
from time import perf_counter

import uvloop

from bench.models import questions
from bench.processes import sruserve
from bench.report import Report
from bench.samples import Samples, in_turn
from bench.targets import Target
from bench.wire import Wire

_CHUNK = 100_000  # characters of one request on the way to the end of a long stream
_FRESH, _LONG = "a new stream", "a long one"


def against_fresh(report: Report, folder: Path, characters: int, rounds: int) -> None:
    """The time of a stream's next completion, by what lies behind it."""
    with sruserve("sruserve", [folder]) as server:
        report.doing(f"a stream of {characters} characters")
        found = uvloop.run(_measure(server.port, characters, rounds))
    samples = {name: Samples(tuple(times), "ms") for name, times in found.items()}
    case = f"16 characters of a stream with {characters:,} behind it"
    report.measured(case, samples)
    ratio = samples[_LONG].median / samples[_FRESH].median
    report.check(f"{case} / of a new one", ratio, "x", Target(most=1.1))


async def _measure(port: int, characters: int, rounds: int) -> dict[str, list[float]]:
    wire = await Wire.connect(port)
    text = re.sub("[^A-Za-z ,.?\n]", "", "\n".join(questions()))  # what the model can read
    text = (text * (characters // len(text) + 1))[:characters]
    states = {_FRESH: await _score(wire, text[:16], None)}
    state: str | None = None
    for start in range(0, characters, _CHUNK):
        state = states[_LONG] = await _score(wire, text[start : start + _CHUNK], state)
    found: dict[str, list[float]] = {name: [] for name in states}
    for turn in range(rounds):
        for name in in_turn(list(states), turn):
            body = {"prompt": "", "max_tokens": 16, "seed": turn, "state": states[name]}
            begin = perf_counter()
            await wire.ask("/v1/completions", body | {"return_state": True})
            found[name].append((perf_counter() - begin) * 1e3)
    wire.close()
    return found


async def _score(wire: Wire, text: str, state: str | None) -> str:
    body = {"input": text, "return_state": True}
    reply = await wire.ask("/v1/score", body | ({"state": state} if state else {}))
    end: str = reply["results"][0]["state"]
    return end
