"""The findings of a benchmark: tables on the terminal during the run, one JSON line at the end."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report.machine import describe_machine
from bench.report.results import write_results
from bench.report.samples import Samples
from bench.report.tables import CHECK_HEAD, SPREAD_HEAD, check_row, spread_row, text_table
from bench.report.targets import NO_TARGET, Check, Target

_BUSY_PERCENT = 10


class Report:
    """Collects the findings of one benchmark.

    name: the benchmark's name. packages: the peers whose versions belong to the figures.
    quick: a smoke run, whose figures mean nothing and are not stored.
    lines: a file that gets every finding at once, as a line of JSON, in case the run is cut off.
    """

    def __init__(
        self,
        name: str,
        packages: Sequence[str],
        quick: bool,
        lines: Path | None = None,
    ) -> None:
        self._name, self._quick, self._lines = name, quick, lines
        self._machine = describe_machine(*packages)
        self._cases: dict[str, dict[str, Any]] = {}
        self._checks: list[dict[str, Any]] = []
        self.line({"machine": self._machine})
        described = " · ".join(f"{key} {value}" for key, value in self._machine.items())
        print(f"{described}\n", flush=True)
        busy = int(self._machine["busy_before_percent"])
        if busy > _BUSY_PERCENT:
            print(
                f"other work takes {busy} % of the machine (limit: {_BUSY_PERCENT} %): these "
                "figures will mislead; repeat the run on an idle machine\n",
                flush=True,
            )

    def progress(self, label: str) -> None:
        """Show the current activity, on a terminal only."""
        if sys.stderr.isatty():
            print(f"\r\x1b[K{label} …", end="", file=sys.stderr, flush=True)

    def line(self, finding: Mapping[str, Any]) -> None:
        """Append a finding to the file of lines."""
        if self._lines is not None:
            with self._lines.open("a") as file:
                file.write(json.dumps(finding) + "\n")

    def add_case(self, case: str, samples_by_name: Mapping[str, Samples]) -> None:
        """Print and record the samples of a case's candidates, by candidate."""
        self.progress("")
        self._cases[case] = {name: samples.summary() for name, samples in samples_by_name.items()}
        self.line({"case": case, "samples": self._cases[case]})
        rows = [spread_row(name, summary) for name, summary in self._cases[case].items()]
        print(text_table((case, *SPREAD_HEAD), rows) + "\n", flush=True)

    def check(self, label: str, value: float, unit: str, target: Target = NO_TARGET) -> None:
        """Record a figure, with its target if it has one."""
        self._checks.append(Check(label, value, unit, target).summary())
        self.line(self._checks[-1])

    def finish(self, results: Path) -> None:
        """Print the checks, store everything in the folder `results`, and print one JSON line."""
        print(text_table(CHECK_HEAD, [check_row(each) for each in self._checks]) + "\n")
        findings = {
            "bench": self._name,
            "machine": self._machine,
            "quick": self._quick,
            "checks": self._checks,
            "cases": self._cases,
        }
        if self._quick:
            print("a quick run: its figures mean nothing and are not stored")
        else:
            print(f"stored in {write_results(findings, results)}")
        print(json.dumps(findings), flush=True)
