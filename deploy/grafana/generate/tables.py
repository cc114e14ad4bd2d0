"""The tables of docs/monitoring.md that follow from the code."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from prometheus_client.metrics import MetricWrapperBase

from deploy.grafana.generate.boards import BOARDS
from sruserve.server.metrics import definitions

_ALERTS = Path(__file__).parents[2] / "prometheus" / "rules" / "alerts.yml"


class Series(NamedTuple):
    """A metric that the server exports."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


def exported() -> list[Series]:
    """All metrics of the server's own, by name."""
    series = []
    for value in vars(definitions).values():
        if isinstance(value, MetricWrapperBase):
            (family,) = value.describe()
            name = f"{family.name}_total" if family.type == "counter" else family.name
            series.append(Series(name, family.type, value._labelnames, family.documentation))
    series += [
        Series(each.name, each.type, each.labels, each.help) for each in definitions.COLLECTED
    ]
    return sorted(series)


def alerts() -> list[dict[str, Any]]:
    """All alerts, in the order of their file."""
    groups = yaml.safe_load(_ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def filled_in(text: str) -> str:
    """The page with its tables as they are now, each between its two marks."""
    for name, lines in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        assert text.count(begin) == text.count(end) == 1, f"the marks of the table {name}"
        before, _, rest = text.partition(begin)
        table = "".join(f"{line}\n" for line in lines())
        text = before + begin + table + end + rest.partition(end)[2]
    return text


def _metrics() -> Iterator[str]:
    yield "| metric | type | labels | meaning |"
    yield "|---|---|---|---|"
    for each in exported():
        labels = ", ".join(f"`{label}`" for label in each.labels)
        yield f"| `{each.name}` | {each.type} | {labels} | {each.help} |"


def _panels() -> Iterator[str]:
    for board in BOARDS:
        title = board.title.removeprefix("sruserve: ")
        yield f"### {title[0].upper()}{title[1:]}"
        yield ""
        yield board.description
        yield ""
        yield f"![{board.title}](graphs/dashboards/{board.name}.svg)"
        yield ""
        yield "| panel | what it shows, and what to do |"
        yield "|---|---|"
        for row in board.rows:
            for panel in row.panels:
                yield f"| {panel.title} | {panel.description} |"
        yield ""


TABLES: Mapping[str, Callable[[], Iterator[str]]] = {"metrics": _metrics, "dashboards": _panels}
