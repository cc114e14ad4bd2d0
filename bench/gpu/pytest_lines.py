"""A pytest plugin: each test's outcome at once, as a line of JSON in the file BENCH_GPU_LINES."""

import json
import os

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write what became of a test, or of its preparation if that failed or skipped it."""
    if report.when == "call" or not report.passed:
        _write(report, seconds=report.duration)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write that a file cannot be imported."""
    if report.failed:
        _write(report)


def _write(report: pytest.TestReport | pytest.CollectReport, **facts: float) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # the process that started the workers hears of it, too
    finding: dict[str, object] = {"test": report.nodeid, "outcome": report.outcome, **facts}
    if report.failed:
        finding["error"] = report.longreprtext[-2000:]
    with open(os.environ["BENCH_GPU_LINES"], "a") as file:
        file.write(json.dumps(finding) + "\n")
