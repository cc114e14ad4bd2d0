"""The folder of results: one JSON file for each bench and kind of machine, and a page of tables."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.machine import machine_class
from bench.tables import CHECK_HEAD, SPREAD_HEAD, check_row, markdown_table, spread_row

_BEGIN, _END = "<!-- tables: begin -->", "<!-- tables: end -->"
_PAGE = f"""# Results

`make bench` writes the files of this folder and the tables below; what stands outside of them is
kept. Candidates take turns in one run. A ratio is the median of the rounds' ratios. Absolute
figures hold for the machine that is named, and for no other.

{_BEGIN}
{_END}
"""


def keep(whole: Mapping[str, Any], folder: Path) -> Path:
    """Write a bench's findings, and the page of all findings anew; return the file written."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{whole['bench']}-{machine_class(whole['machine'])}.json"
    path.write_text(json.dumps(whole, indent=1) + "\n")
    page = folder / "README.md"
    text = page.read_text() if page.exists() else _PAGE
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    tables = "\n\n".join(_section(each) for each in found)
    page.write_text(f"{before}{_BEGIN}\n\n{tables}\n\n{_END}{after}")
    return path


def _section(whole: Mapping[str, Any]) -> str:
    """One bench on one kind of machine."""
    machine = whole["machine"]
    facts = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in machine.items())
    where = machine.get("gpu") or f"{machine['processor']}, {machine['cores']} cores"
    parts = [f"## {whole['bench']} · {where}", facts]
    if whole["checks"]:
        parts.append(markdown_table(CHECK_HEAD, [check_row(c) for c in whole["checks"]]))
    for case, candidates in whole["cases"].items():
        rows = [spread_row(name, summary) for name, summary in candidates.items()]
        parts.append(markdown_table((case, *SPREAD_HEAD), rows))
    return "\n\n".join(parts)
