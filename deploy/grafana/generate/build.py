"""Make a dashboard of Grafana from its description, with Grafana's own builders."""

import json
from typing import Any

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import stat, timeseries
from grafana_foundation_sdk.builders.common import (
    GraphThresholdsStyleConfig as ThresholdsStyle,
)
from grafana_foundation_sdk.builders.common import ReduceDataOptions, VizLegendOptions
from grafana_foundation_sdk.builders.common import VizTooltipOptions as Tooltip
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    DataSourceRef,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from deploy.grafana.generate.panels import Board, Panel, Query

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "sruserve"
_COLUMNS = 24
_BESIDE = 4  # panels of lines, at most
_NUMBER_HEIGHT, _LINES_HEIGHT = 4, 8
_RULES = "load deploy/prometheus/rules"


def built(board: Board) -> str:
    """The JSON of a dashboard, as its file has it."""
    builder = (
        builders.Dashboard(board.title)
        .uid(f"sruserve-{board.name}")
        .description(board.description)
        .tags([TAG])
        .timezone("browser")
        .time("now-30m", "now")
        .refresh("10s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(
            builders.DashboardLink("sruserve")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(
            builders.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
        .with_variable(_choice("model", "Model", "sru_requests_total"))
        .with_variable(_choice("instance", "Instance", "sru_build_info"))
    )
    for row in board.rows:
        builder.with_row(builders.Row(row.title))
        for panel in row.panels:
            count = len(row.panels)
            beside = count if panel.number or count <= _BESIDE else _BESIDE - 1
            width = panel.width or _COLUMNS // beside
            builder.with_panel((_number if panel.number else _lines)(panel, width))
    made: dict[str, Any] = json.loads(JSONEncoder().encode(builder.build()))
    for number, each in enumerate(made["panels"], 1):
        each["id"] = number
    return json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _choice(name: str, label: str, metric: str) -> builders.QueryVariable:
    """A variable with all values of a label, of which any number may be chosen."""
    query = f"label_values({metric}, {name})"
    return (
        builders.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"qryType": 1, "query": query, "refId": name})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".+")
        .current(VariableOption(text=["All"], value=["$__all"]))
    )


def _number(panel: Panel, width: int) -> stat.Panel:
    made = (
        stat.Panel()
        .title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .unit(panel.unit)
        .no_value("no data" if "sruserve:" not in panel.queries[0].expression else _RULES)
        .thresholds(_thresholds(panel.limit, "green"))
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(BigValueGraphMode.NONE if panel.names else BigValueGraphMode.AREA)
        .color_mode(BigValueColorMode.VALUE)
        .text_mode(BigValueTextMode.NAME if panel.names else BigValueTextMode.VALUE)
        .span(width)
        .height(_NUMBER_HEIGHT)
    )
    return made.targets([_target(query, number) for number, query in enumerate(panel.queries)])


def _lines(panel: Panel, width: int) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .unit(panel.unit)
        .min(0)
        .line_width(1)
        .fill_opacity(8)
        .show_points(VisibilityMode.NEVER)
        .legend(
            VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(Tooltip().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
        .span(width)
        .height(_LINES_HEIGHT)
    )
    if panel.limit is not None:
        made.thresholds(_thresholds(panel.limit, "transparent"))
        made.thresholds_style(ThresholdsStyle().mode(GraphThresholdsStyleMode.DASHED))
    return made.targets([_target(query, number) for number, query in enumerate(panel.queries)])


def _thresholds(limit: float | None, below: str) -> builders.ThresholdsConfig:
    steps = [Threshold(color=below, value=None)]
    if limit is not None:
        steps.append(Threshold(color="red", value=limit))
    return builders.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _target(query: Query, number: int) -> Dataquery:
    return (
        Dataquery()
        .datasource(SOURCE)
        .expr(query.expression)
        .legend_format(query.legend)
        .ref_id(chr(ord("A") + number))
        .range()
    )
