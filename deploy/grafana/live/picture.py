"""A dashboard as a picture: each of its panels with what its queries returned."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from deploy.grafana.live.expressions import filled_in, panels
from deploy.grafana.live.prometheus import Line
from deploy.grafana.live.units import written

Read = Callable[[str], Sequence[Line]]
"""The lines of a query."""

_CELL_WIDTH, _CELL_HEIGHT, _GAP = 50, 26, 6
_HEAD = 44
_STEPS = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10)  # of an axis
_COLOURS = (
    *("#3f8f4f", "#d0a215", "#3a78c2", "#c4622d", "#b03a48", "#8a4fa3", "#2c8c8c", "#7d7d2a"),
    *("#5b5b9d", "#a05a7c", "#4d7a3c", "#99652e"),
)
_STYLE = (
    "text{font:11px sans-serif;fill:#444}.t{font-size:12px;font-weight:600;fill:#222}"
    ".h{font-size:18px;font-weight:600;fill:#222}.r{font-size:13px;font-weight:600;fill:#222}"
    ".n{font-size:24px;font-weight:600}.p{fill:#fff;stroke:#d8d8de}.g{stroke:#ececf0}"
    ".l{fill:none;stroke-width:1.4}.x{stroke:#c22;stroke-dasharray:4 3}.s{fill:#777}"
)


class Shown(NamedTuple):
    """A named line of a panel."""

    name: str
    points: Sequence[tuple[float, float]]


class Box(NamedTuple):
    """A part of the picture, in pixels."""

    x: float
    y: float
    width: float
    height: float


def drawn(board: Mapping[str, Any], read: Read, begin: float, end: float, interval: str) -> str:
    """The picture of a dashboard as SVG.

    begin, end: the Unix times that it shows. interval: over which rates are taken.
    """
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    width, height = 24 * _CELL_WIDTH + 2 * _GAP, bottom * _CELL_HEIGHT + _HEAD + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}"><style>{_STYLE}</style>',
        f'<rect width="{width}" height="{height}" fill="#f4f5f8"/>',
        _text(2 * _GAP, 28, board["title"], "h"),
    ]
    for panel in board["panels"]:
        box = _box(panel["gridPos"])
        if panel["type"] == "row":
            parts.append(_text(box.x, box.y + 18, panel["title"], "r"))
    for panel in panels(dict(board)):
        parts += _panel(panel, read, begin, end, interval)
    return "\n".join([*parts, "</svg>", ""])


def shown_lines(panel: Mapping[str, Any], read: Read, interval: str) -> list[Shown]:
    """What the queries of a panel returned, under the names of its legend."""
    lines = []
    for target in panel["targets"]:
        for line in read(filled_in(target["expr"], interval)):
            name = target["legendFormat"]
            for label, value in line.labels.items():
                name = name.replace("{{" + label + "}}", value)
            lines.append(Shown(name, line.points))
    return sorted(lines, key=lambda line: line.name)


def _panel(
    panel: Mapping[str, Any], read: Read, begin: float, end: float, interval: str
) -> Iterator[str]:
    box = _box(panel["gridPos"])
    defaults = panel["fieldConfig"]["defaults"]
    lines = [line for line in shown_lines(panel, read, interval) if line.points]
    yield f'<rect class="p" rx="3" {_rect(box)}/>'
    yield _text(box.x + 8, box.y + 17, panel["title"], "t")
    if not lines:
        yield _text(box.x + 8, box.y + 40, "no data")
    elif panel["type"] == "stat":
        yield from _number(panel, box, lines, defaults)
    else:
        yield from _chart(box, lines, defaults, begin, end)


def _number(
    panel: Mapping[str, Any], box: Box, lines: Sequence[Shown], defaults: Mapping[str, Any]
) -> Iterator[str]:
    value = lines[0].points[-1][1]
    limit = _limit(defaults)
    colour = "#b03a48" if limit is not None and value >= limit else "#3f8f4f"
    named = panel["options"]["textMode"] == "name"
    text = lines[0].name if named else written(value, defaults["unit"])
    style = ";font-size:17px" if named else ""
    middle = box.x + box.width / 2
    yield (
        f'<text class="n" x="{middle:.0f}" y="{box.y + 66:.0f}" text-anchor="middle" '
        f'style="fill:{colour}{style}">{escape(text)}</text>'
    )


def _chart(
    box: Box, lines: Sequence[Shown], defaults: Mapping[str, Any], begin: float, end: float
) -> Iterator[str]:
    rows = list(_legend_rows(lines, box.width - 16))
    plot = Box(box.x + 62, box.y + 28, box.width - 74, box.height - 28 - 18 - 15 * len(rows) - 4)
    top = _top(max(value for line in lines for _, value in line.points), defaults["unit"])
    for tick in range(5):
        y = plot.y + plot.height * (1 - tick / 4)
        yield f'<path class="g" d="M{plot.x:.0f} {y:.1f}h{plot.width:.0f}"/>'
        label = written(top * tick / 4, defaults["unit"])
        yield _text(plot.x - 5, y + 4, label, "s", anchor="end")
    minutes = round((end - begin) / 60)
    yield _text(plot.x, plot.y + plot.height + 14, f"{minutes} min ago", "s")
    yield _text(plot.x + plot.width, plot.y + plot.height + 14, "now", "s", anchor="end")
    limit = _limit(defaults)
    if limit is not None and limit <= top:
        y = plot.y + plot.height * (1 - limit / top)
        yield f'<path class="x" d="M{plot.x:.0f} {y:.1f}h{plot.width:.0f}"/>'
    for number, line in enumerate(lines):
        points = " ".join(
            f"{plot.x + plot.width * (at - begin) / (end - begin):.0f},"
            f"{plot.y + plot.height * (1 - min(value, top) / top):.0f}"
            for at, value in line.points
        )
        yield f'<polyline class="l" stroke="{_colour(number)}" points="{points}"/>'
    for row_number, row in enumerate(rows):
        x, y = box.x + 8, box.y + box.height - 8 - 15 * (len(rows) - 1 - row_number)
        for number, name in row:
            place = f'x="{x:.0f}" y="{y - 6:.0f}" width="10" height="3"'
            yield f'<rect {place} fill="{_colour(number)}"/>'
            yield _text(x + 14, y, name)
            x += _name_width(name)


def _legend_rows(lines: Sequence[Shown], width: float) -> Iterator[list[tuple[int, str]]]:
    """The names with the numbers of their lines, as they fit beside each other."""
    row: list[tuple[int, str]] = []
    left = width
    for number, line in enumerate(lines):
        if row and _name_width(line.name) > left:
            yield row
            row, left = [], width
        row.append((number, line.name))
        left -= _name_width(line.name)
    yield row


def _name_width(name: str) -> float:
    return 6.0 * len(name) + 28


def _top(value: float, unit_name: str) -> float:
    """The end of an axis: a round number above all values."""
    if value <= 0:
        return 1.0
    if unit_name == "bytes":
        return float(2.0 ** math.ceil(math.log2(value)))
    unit = 10.0 ** math.floor(math.log10(value))
    return next(unit * step for step in _STEPS if unit * step >= value)


def _limit(defaults: Mapping[str, Any]) -> float | None:
    steps = defaults.get("thresholds", {}).get("steps", [])
    return float(steps[1]["value"]) if len(steps) > 1 else None


def _box(grid: Mapping[str, int]) -> Box:
    return Box(
        _GAP + grid["x"] * _CELL_WIDTH + _GAP / 2,
        _HEAD + grid["y"] * _CELL_HEIGHT + _GAP / 2,
        grid["w"] * _CELL_WIDTH - _GAP,
        grid["h"] * _CELL_HEIGHT - _GAP,
    )


def _rect(box: Box) -> str:
    return f'x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}"'


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> str:
    place = f'x="{x:.0f}" y="{y:.0f}"'
    if anchor != "start":
        place += f' text-anchor="{anchor}"'
    if kind:
        place += f' class="{kind}"'
    return f"<text {place}>{escape(text)}</text>"


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]
