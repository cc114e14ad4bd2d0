"""The findings for a reader, as a table, and for a program, as JSON."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sruserve.check.findings import Finding, Verdict
from sruserve.check.session import Outcome
from sruserve.model.errors import printable

_COLOURS = {
    Verdict.PASSES: "green",
    Verdict.FAILS: "bold red",
    Verdict.NOT_APPLICABLE: "dim",
    Verdict.NO_ANSWER: "bold yellow",
}
_WIDTH = 100  # of a table that no terminal shows


def print_table(outcome: Outcome) -> None:
    """Print a row for each check to the standard output; with colours on a terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    title = f"model {printable(outcome.model)} over {outcome.protocol}"
    table = Table(
        title=Text(f"{title}, {outcome.requests} requests"),
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("check", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("why", overflow="fold")
    for each in outcome.checked:
        verdict = each.finding.verdict
        table.add_row(
            each.check.name,
            Text(verdict, style=_COLOURS[verdict]),
            Text(_why(each.finding)),
        )
    console.print(table)


def _why(finding: Finding) -> str:
    lines = [finding.reason]
    if finding.example:
        lines.append(f"smallest example: {finding.example}")
    if finding.difference:
        lines.append(f"difference: {finding.difference}")
    if finding.verdict is Verdict.FAILS and finding.largest:
        rounding = " (rounding)" if finding.within_rounding else ""
        lines.append(f"largest difference of a number: {finding.largest:.3g}{rounding}")
    return "\n".join(map(printable, lines))


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Everything that the table shows, and the numbers without rounding."""
    return {
        "urls": outcome.urls,
        "protocol": outcome.protocol,
        "model": outcome.model,
        "tolerance": outcome.tolerance,
        "requests": outcome.requests,
        "exit_code": outcome.exit_code,
        "checks": [
            {"name": each.check.name, "question": each.check.question, **_fields(each.finding)}
            for each in outcome.checked
        ],
    }


def _fields(finding: Finding) -> dict[str, Any]:
    return {
        "verdict": str(finding.verdict),
        "reason": finding.reason,
        "example": finding.example or None,
        "difference": finding.difference or None,
        # JSON has no infinity
        "largest_difference": finding.largest if finding.largest < float("inf") else None,
        "within_rounding": finding.within_rounding,
        "comparisons": finding.comparisons,
    }
