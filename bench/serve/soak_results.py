"""What a soak has shown: times with and without hostile clients, errors by kind, what grew."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.report import Report
from bench.samples import Samples
from bench.serve.seen import OK, WRONG, Seen, errors
from bench.serve.watch import Reading
from bench.targets import Target

_WARM_SHARE = 0.25  # of the attack, before memory has to be flat
_LOOK_SHARE = 0.1  # of the attack, over which memory is looked at when warm and at the end
_ASKED_FOR_SECONDS = 15.0  # after a kill of Redis its 503 are what they should be
_MOST_ERRORS = 40
_MIB = 1 << 20


@dataclass(frozen=True)
class Phases:
    """When the attack began and ended, and when what was killed."""

    begin: float
    end: float
    kills: Sequence[tuple[float, str]]

    @property
    def name(self) -> str:
        return f"{(self.end - self.begin) / 60:.0f} minutes of attacks"

    def asked_for(self, seen: Seen) -> bool:
        """Whether a 5xx is what a kill of Redis has to look like."""
        begin = seen.at - seen.ms / 1e3
        return seen.status == 503 and any(
            what == "redis" and begin < at + _ASKED_FOR_SECONDS and seen.at > at
            for at, what in self.kills
        )


def tell(report: Report, phases: Phases, honest: Sequence[Seen], hostile: Sequence[Seen]) -> None:
    """Tables of times, checks of what has a target, and all errors by kind."""
    quiet = [each for each in honest if each.at < phases.begin]
    attacked = [each for each in honest if each.at >= phases.begin]
    for kind in sorted({each.kind for each in quiet if ":" not in each.kind}):
        _compare(report, phases.name, kind, _times(quiet, kind), _times(attacked, kind))
    everyone = [*honest, *hostile]
    unasked = [e for e in everyone if 500 <= e.status < 600 and not phases.asked_for(e)]
    wrong = [each for each in everyone if each.outcome.startswith(WRONG)]
    refused = [each for each in attacked if each.status == 429]
    none = Target(most=0)
    for what, count, target in (
        ("honest requests", len(attacked), Target()),
        ("honest requests refused with 429", len(refused), Target()),
        ("hostile requests that were answered", len(hostile), Target()),
        ("kills of a worker and of Redis", len(phases.kills), Target()),
        ("answers that were wrong, lost or repeated", len(wrong), none),
        ("5xx that nobody asked for", len(unasked), none),
    ):
        report.check(f"{phases.name}: {what}", count, "", target)
    for title, seen in (("honest", attacked), ("hostile", hostile), ("5xx", unasked)):
        print(f"errors, {title}:")
        for what, many in errors(seen).most_common(_MOST_ERRORS):
            print(f"  {many:8,} {what}")
        print(flush=True)


def tell_resources(report: Report, phases: Phases, readings: Sequence[Reading]) -> None:
    """What a worker took that lived all the time, when warm and at the end."""
    name, seconds = phases.name, phases.end - phases.begin
    warm, last = phases.begin + _WARM_SHARE * seconds, phases.end - _LOOK_SHARE * seconds
    early = [r for r in readings if warm < r.at < warm + _LOOK_SHARE * seconds]
    late = [r for r in readings if r.at > last]
    if not early or not late:
        raise ConnectionError("the oldest worker did not live until the end")
    before, after = (median(r.resident for r in part) for part in (early, late))
    report.check(f"{name}: resident memory when warm", before / _MIB, "MiB")
    flat = Target(most=1.1)
    report.check(f"{name}: resident memory at the end / when warm", after / before, "x", flat)
    report.check(f"{name}: most resident memory", max(r.resident for r in readings) / _MIB, "MiB")
    report.check(f"{name}: most descriptors", max(r.descriptors for r in readings), "")
    report.check(f"{name}: descriptors at the end", median(r.descriptors for r in late), "")
    report.check(f"{name}: most threads", max(r.threads for r in readings), "")


def _compare(
    report: Report, name: str, kind: str, quiet: Sequence[float], attacked: Sequence[float]
) -> None:
    if not quiet or not attacked:
        raise ConnectionError(f"no honest request of kind {kind!r} was answered in a phase")
    samples = {
        "quiet": Samples(tuple(quiet), "ms"),
        "attacked": Samples(tuple(attacked), "ms"),
    }
    report.measured(f"{name}: {kind}", samples)
    before, after = (each.quantile(0.99) for each in samples.values())
    report.check(f"{name}: p99 of {kind}, quiet", before, "ms")
    report.check(f"{name}: p99 of {kind}, attacked / quiet", after / before, "x", Target(most=3))


def _times(seen: Sequence[Seen], kind: str) -> list[float]:
    return [each.ms for each in seen if each.kind == kind and each.outcome == OK]
