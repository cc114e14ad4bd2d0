"""A bench's findings: tables on the terminal as they come, one JSON line at the end."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.archive import keep
from bench.machine import describe_machine
from bench.samples import Samples
from bench.tables import CHECK_HEAD, SPREAD_HEAD, check_row, spread_row, text_table
from bench.targets import TOLD, Check, Target

_BUSY_PERCENT = 10


class Report:
    """Collects what one bench finds.

    name: the bench's. packages: the peers whose versions belong to the figures. quick: a smoke
    run, whose figures mean nothing and are not kept.
    """

    def __init__(self, name: str, packages: Sequence[str], quick: bool) -> None:
        self._name, self._quick = name, quick
        self._machine = describe_machine(*packages)
        self._cases: dict[str, dict[str, Any]] = {}
        self._checks: list[dict[str, Any]] = []
        facts = " · ".join(f"{key} {value}" for key, value in self._machine.items())
        print(f"{facts}\n", flush=True)
        busy = int(self._machine["busy_before_percent"])
        if busy > _BUSY_PERCENT:
            print(f"the machine is {busy} % busy with other work: this will mislead\n", flush=True)

    def doing(self, what: str) -> None:
        """Say on a terminal what takes so long."""
        if sys.stderr.isatty():
            print(f"\r\x1b[K{what} …", end="", file=sys.stderr, flush=True)

    def measured(self, case: str, found: Mapping[str, Samples]) -> None:
        """Tell and keep what the candidates of a case took."""
        self.doing("")
        self._cases[case] = {name: samples.summary() for name, samples in found.items()}
        rows = [spread_row(name, summary) for name, summary in self._cases[case].items()]
        print(text_table((case, *SPREAD_HEAD), rows) + "\n", flush=True)

    def check(self, what: str, value: float, unit: str, target: Target = TOLD) -> None:
        """Keep a figure, with its target if it has one."""
        self._checks.append(Check(what, value, unit, target).summary())

    def finish(self, results: Path) -> None:
        """Tell the checks, keep everything in the folder `results`, end in one JSON line."""
        print(text_table(CHECK_HEAD, [check_row(each) for each in self._checks]) + "\n")
        whole = {
            "bench": self._name,
            "machine": self._machine,
            "quick": self._quick,
            "checks": self._checks,
            "cases": self._cases,
        }
        if self._quick:
            print("a quick run: its figures mean nothing and are not kept")
        else:
            print(f"kept in {keep(whole, results)}")
        print(json.dumps(whole), flush=True)
