"""Every query that the dashboards and rules of this repository contain."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

DEPLOY = Path(__file__).parents[2]
DASHBOARDS = DEPLOY / "grafana" / "dashboards"
RULES = DEPLOY / "prometheus" / "rules"

# A name that a selector begins with, and its matchers. Functions and words of PromQL have neither
# prefix.
_NAMES = r"sru_\w+|sruserve:[\w:]+|haproxy_\w+|probe_\w+|up|scrape_duration_seconds"
_SELECTOR = re.compile(rf"\b({_NAMES})\b(\{{[^}}]*\}})?")


class PanelQuery(NamedTuple):
    """A query of a panel. legend: the name of its lines, with labels in double braces."""

    board: str
    panel: str
    expression: str
    legend: str


def boards() -> dict[str, dict[str, Any]]:
    """The dashboards by the names of their files."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(DASHBOARDS.glob("*.json"))}


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """The panels of a dashboard, without its rows."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def filled_in(expression: str, interval: str) -> str:
    """A panel's query with Grafana's variables replaced: all models, all instances."""
    for name, value in (("__rate_interval", interval), ("model", ".+"), ("instance", ".+")):
        expression = expression.replace(f"${name}", value)
    assert "$" not in expression, f"a variable that Grafana does not know: {expression}"
    return expression


def panel_queries(interval: str) -> list[PanelQuery]:
    """All queries of all panels."""
    return [
        PanelQuery(
            name, panel["title"], filled_in(target["expr"], interval), target["legendFormat"]
        )
        for name, board in boards().items()
        for panel in panels(board)
        for target in panel["targets"]
    ]


def variables() -> set[tuple[str, str]]:
    """Metric and label of all variables whose choices Grafana asks Prometheus for."""
    pairs = set()
    for board in boards().values():
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                match = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
                assert match is not None, variable["query"]
                pairs.add((match[1], match[2]))
    return pairs


def rules(kind: str) -> list[dict[str, Any]]:
    """All rules of a kind: `record` or `alert`."""
    rules_of_kind = []
    for file in sorted(RULES.glob("*.yml")):
        for group in yaml.safe_load(file.read_text())["groups"]:
            rules_of_kind += [rule for rule in group["rules"] if kind in rule]
    return rules_of_kind


def selectors(expression: str) -> Iterator[tuple[str, str]]:
    """The metric and the matchers of every selector in a query."""
    for match in _SELECTOR.finditer(expression):
        yield match[1], match[2] or ""
