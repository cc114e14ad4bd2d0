"""The findings of a soak from its clients' observations."""

import asyncio
import json
from pathlib import Path

import pytest

from bench.report.report import Report
from bench.serve.soak.http2 import frame
from bench.serve.soak.observations import Log, Observation, Refused, WrongAnswer, errors, read
from bench.serve.soak.results import Phases, report_requests, report_resources
from bench.serve.soak.watch import Reading

PHASES = Phases(100.0, 200.0, [(150.0, "redis"), (170.0, "worker")])


def checks_of(capsys: pytest.CaptureFixture[str], report: Report, folder: Path) -> dict[str, float]:
    """The checks of a report, by their labels without the name of the phase."""
    report.finish(folder)
    output = json.loads(capsys.readouterr().out.splitlines()[-1])
    return {check["what"].partition(": ")[2]: check["value"] for check in output["checks"]}


def test_every_request_is_written_down_with_its_end(tmp_path: Path) -> None:
    async def good() -> None: ...

    async def wrong() -> None:
        raise WrongAnswer("two\nlines")

    async def refused() -> None:
        raise Refused("429 overloaded")

    async def gone() -> None:
        raise ConnectionResetError

    async def ask(log: Log) -> list[bool]:
        return [await log.time("classify", each) for each in (good, wrong, refused, gone)]

    with (tmp_path / "log").open("w") as file:
        assert asyncio.run(ask(Log(file))) == [True, False, False, False]
    seen = list(read(tmp_path / "log"))
    assert [each.outcome for each in seen] == [
        "ok", "wrong: two lines", "429 overloaded", "hung up (ConnectionResetError)",
    ]  # fmt: skip
    assert [each.status for each in seen] == [0, 0, 429, 0]
    assert sum(errors(seen).values()) == 3


@pytest.mark.parametrize(
    ("at", "outcome", "expected"),
    [
        (152.0, "503 store_unavailable", True),
        (149.0, "503 store_unavailable", False),  # Redis was still there
        (171.0, "503 store_unavailable", False),  # and has long been there again
        (152.0, "500 internal_error", False),
    ],
)
def test_an_error_is_expected_only_while_redis_is_unavailable(
    at: float, outcome: str, expected: bool
) -> None:
    assert PHASES.expects(Observation(at, "held", 5.0, outcome)) is expected


def test_wrong_answers_and_unexpected_errors_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = [Observation(50.0, "classify", 1.0, "ok"), Observation(120.0, "classify", 2.5, "ok")]
    honest += [
        Observation(130.0, "classify", 1.0, "wrong: it"),
        Observation(130.0, "classify", 1.0, "500 x"),
    ]
    report = Report("soak", (), quick=True)
    report_requests(
        report, PHASES, honest, [Observation(152.0, "hostile", 1.0, "503 store_unavailable")]
    )
    checks = checks_of(capsys, report, tmp_path)
    assert checks["p99 of classify, attacked / quiet"] == 2.5
    assert checks["answers that were wrong, lost or repeated"] == 1
    assert checks["5xx that nobody asked for"] == 1


def test_memory_is_compared_at_the_end_with_when_it_was_warm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readings = [Reading(float(at), 1, (at - 60) << 20, 10, 5) for at in range(100, 200)]
    report = Report("soak", (), quick=True)
    report_resources(report, PHASES, readings)
    checks = checks_of(capsys, report, tmp_path)
    assert checks["resident memory at the end / when warm"] == pytest.approx(135 / 70.5, 0.02)
    with pytest.raises(ConnectionError, match="oldest worker"):
        report_resources(report, PHASES, readings[:50])


def test_a_frame_has_its_length_before_it() -> None:
    assert frame(0x4, 0x1, 3, b"abc") == b"\0\0\x03\x04\x01\0\0\0\x03abc"
