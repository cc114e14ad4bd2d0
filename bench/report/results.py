"""The results folder: a JSON file for each benchmark and kind of machine, and a page of tables."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.report.machine import machine_class
from bench.report.tables import CHECK_HEAD, SPREAD_HEAD, check_row, markdown_table, spread_row

_BEGIN, _END = "<!-- tables: begin -->", "<!-- tables: end -->"
_PAGE = f"""# Results

`make bench` writes the files of this folder and the tables below, and keeps the text around the
tables. Candidates take turns in one run. A ratio is the median of the rounds' ratios. Absolute
figures hold only for the named machine.

{_BEGIN}
{_END}
"""


def write_results(findings: Mapping[str, Any], folder: Path) -> Path:
    """Write a benchmark's findings and update the page of all findings; return the file written."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{findings['bench']}-{machine_class(findings['machine'])}.json"
    path.write_text(json.dumps(findings, indent=1) + "\n")
    page = folder / "README.md"
    text = page.read_text() if page.exists() else _PAGE
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    all_findings = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    tables = "\n\n".join(_section(each) for each in all_findings)
    page.write_text(f"{before}{_BEGIN}\n\n{tables}\n\n{_END}{after}")
    return path


def _section(findings: Mapping[str, Any]) -> str:
    """Format one benchmark on one kind of machine."""
    machine = findings["machine"]
    facts = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in machine.items())
    device = machine.get("gpu") or f"{machine['processor']}, {machine['cores']} cores"
    parts = [f"## {findings['bench']} · {device}", facts]
    if findings["checks"]:
        parts.append(markdown_table(CHECK_HEAD, [check_row(c) for c in findings["checks"]]))
    for case, candidates in findings["cases"].items():
        rows = [spread_row(name, summary) for name, summary in candidates.items()]
        parts.append(markdown_table((case, *SPREAD_HEAD), rows))
    return "\n\n".join(parts)
