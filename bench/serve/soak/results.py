"""The findings of a soak: times with and without hostile clients, errors by kind, resources."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.report.report import Report
from bench.report.samples import Samples
from bench.report.targets import Target
from bench.serve.soak.observations import OK, WRONG, Observation, errors
from bench.serve.soak.watch import Reading

_WARM_SHARE = 0.25  # share of the attack before memory must be flat
_LOOK_SHARE = 0.1  # share of the attack in which memory is measured, when warm and at the end
_EXPECTED_503_SECONDS = 15.0  # after a kill of Redis, in which a 503 is expected
_MAX_ERRORS = 40
_MIB = 1 << 20


@dataclass(frozen=True)
class Phases:
    """Begin and end of the attack, and time and process of each kill."""

    begin: float
    end: float
    kills: Sequence[tuple[float, str]]

    @property
    def name(self) -> str:
        return f"{(self.end - self.begin) / 60:.0f} minutes of attacks"

    def expects(self, request: Observation) -> bool:
        """Whether a 5xx is the expected result of a kill of Redis."""
        begin = request.at - request.ms / 1e3
        return request.status == 503 and any(
            process == "redis" and begin < at + _EXPECTED_503_SECONDS and request.at > at
            for at, process in self.kills
        )


def report_requests(
    report: Report, phases: Phases, honest: Sequence[Observation], hostile: Sequence[Observation]
) -> None:
    """Report the times as tables, the checks with their targets, and all errors by kind."""
    quiet = [each for each in honest if each.at < phases.begin]
    attacked = [each for each in honest if each.at >= phases.begin]
    for kind in sorted({each.kind for each in quiet if ":" not in each.kind}):
        _compare(report, phases.name, kind, _times(quiet, kind), _times(attacked, kind))
    everyone = [*honest, *hostile]
    unexpected = [e for e in everyone if 500 <= e.status < 600 and not phases.expects(e)]
    wrong = [each for each in everyone if each.outcome.startswith(WRONG)]
    refused = [each for each in attacked if each.status == 429]
    no_errors = Target(maximum=0)
    for label, count, target in (
        ("honest requests", len(attacked), Target()),
        ("honest requests refused with 429", len(refused), Target()),
        ("hostile requests that were answered", len(hostile), Target()),
        ("kills of a worker and of Redis", len(phases.kills), Target()),
        ("answers that were wrong, lost or repeated", len(wrong), no_errors),
        ("5xx that nobody asked for", len(unexpected), no_errors),
    ):
        report.check(f"{phases.name}: {label}", count, "", target)
    for title, requests in (("honest", attacked), ("hostile", hostile), ("5xx", unexpected)):
        print(f"errors, {title}:")
        for label, count in errors(requests).most_common(_MAX_ERRORS):
            print(f"  {count:8,} {label}")
        print(flush=True)


def report_resources(report: Report, phases: Phases, readings: Sequence[Reading]) -> None:
    """Report the resources of the oldest worker, when warm and at the end."""
    name, seconds = phases.name, phases.end - phases.begin
    warm, last = phases.begin + _WARM_SHARE * seconds, phases.end - _LOOK_SHARE * seconds
    early = [r for r in readings if warm < r.at < warm + _LOOK_SHARE * seconds]
    late = [r for r in readings if r.at > last]
    if not early or not late:
        raise ConnectionError("the oldest worker did not run until the end: memory has no figures")
    before, after = (median(r.resident for r in part) for part in (early, late))
    report.check(f"{name}: resident memory when warm", before / _MIB, "MiB")
    flat = Target(maximum=1.1)
    report.check(f"{name}: resident memory at the end / when warm", after / before, "x", flat)
    report.check(f"{name}: most resident memory", max(r.resident for r in readings) / _MIB, "MiB")
    report.check(f"{name}: most descriptors", max(r.descriptors for r in readings), "")
    report.check(f"{name}: descriptors at the end", median(r.descriptors for r in late), "")
    report.check(f"{name}: most threads", max(r.threads for r in readings), "")


def _compare(
    report: Report, name: str, kind: str, quiet: Sequence[float], attacked: Sequence[float]
) -> None:
    if not quiet or not attacked:
        raise ConnectionError(f"no honest request of kind {kind!r} succeeded in one of the phases")
    samples = {
        "quiet": Samples(tuple(quiet), "ms"),
        "attacked": Samples(tuple(attacked), "ms"),
    }
    report.add_case(f"{name}: {kind}", samples)
    before, after = (each.quantile(0.99) for each in samples.values())
    report.check(f"{name}: p99 of {kind}, quiet", before, "ms")
    report.check(f"{name}: p99 of {kind}, attacked / quiet", after / before, "x", Target(maximum=3))


def _times(seen: Sequence[Observation], kind: str) -> list[float]:
    return [each.ms for each in seen if each.kind == kind and each.outcome == OK]
