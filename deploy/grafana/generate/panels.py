"""What a dashboard shows: panels of queries, in rows."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL, and the name of its lines; `{{label}}` stands for a label's value."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    description: what it shows, and what to do when it looks bad.
    unit: as Grafana names it.
    number: one number instead of lines over time.
    width: of the 24 columns of a dashboard; 0: an equal part of the row.
    limit: a value from which on the number or the line is drawn in red.
    names: the number's text is the name of its series.
    """

    title: str
    unit: str
    description: str
    queries: Sequence[Query]
    number: bool = False
    width: int = 0
    limit: float | None = None
    names: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Panels beside each other under a title."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard. name: of its file, and the end of its identifier in Grafana."""

    name: str
    title: str
    description: str
    rows: Sequence[Row]
