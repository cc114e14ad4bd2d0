"""Format findings as tables, for the terminal and for Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

SPREAD_HEAD = ("median", "min", "p10 - p90", "unit")
CHECK_HEAD = ("measured", "found", "target", "met")


def spread_row(name: str, summary: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a table's row for the samples of one candidate."""
    spread = f"{number(summary['p10'])} - {number(summary['p90'])}"
    return (
        name, number(summary["median"]), number(summary["min"]), spread, str(summary["unit"])
    )  # fmt: skip


def check_row(check: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a table's row for a stored check."""
    met = {True: "yes", False: "NO", None: ""}[check["met"]]
    return check["what"], f"{number(check['value'])} {check['unit']}", check["target"], met


def number(value: float) -> str:
    """Format a number with three significant digits and without an exponent."""
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3}f}"


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format aligned columns: the first one left-aligned, figures right-aligned."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format the table in Markdown."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
