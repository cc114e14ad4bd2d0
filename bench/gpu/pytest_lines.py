"""A pytest plugin: each test's outcome at once, as a line of JSON in the file BENCH_GPU_LINES."""

import json
import os

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write what became of a test, or of its preparation if that failed or skipped it."""
    if "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.passed):
        return
    finding = {"test": report.nodeid, "outcome": report.outcome, "seconds": report.duration}
    if report.failed:
        finding["error"] = report.longreprtext[-2000:]
    with open(os.environ["BENCH_GPU_LINES"], "a") as file:
        file.write(json.dumps(finding) + "\n")
