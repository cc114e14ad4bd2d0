"""The dashboards are what their generator makes, show every metric, and say what to do."""

import re
from typing import Any

import pytest
from prometheus_client import REGISTRY

from deploy.grafana.generate.__main__ import DOCS, FOLDER
from deploy.grafana.generate.boards import BOARDS, NOT_SHOWN
from deploy.grafana.generate.build import SOURCE, built
from deploy.grafana.generate.panels import Board
from deploy.grafana.generate.tables import exported, filled_in
from deploy.grafana.live.expressions import boards, panel_queries, panels
from deploy.grafana.live.units import written
from sruserve.server.metrics import metrics
from sruserve.server.settings import Settings, variable_name

ALL = boards()
PICTURES = DOCS.parent / "graphs" / "dashboards"
ADVICE = re.compile(
    r"\b(look|add|raise|lower|read|find|follow|install|let|give|limit|open)\b", re.IGNORECASE
)

each_board = pytest.mark.parametrize("name", ALL)


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_the_files_are_what_the_generator_makes(board: Board) -> None:
    file = FOLDER / f"{board.name}.json"
    assert file.read_text() == built(board), "run python -m deploy.grafana.generate"


def test_there_is_a_file_for_each_dashboard_and_no_other() -> None:
    assert ALL.keys() == {board.name for board in BOARDS}
    assert len({board["uid"] for board in ALL.values()}) == len(ALL)


def test_the_tables_of_the_docs_are_what_the_generator_makes() -> None:
    text = DOCS.read_text()
    assert text == filled_in(text), "run python -m deploy.grafana.generate"


def test_every_metric_is_on_a_panel_or_there_is_a_reason_why_not() -> None:
    shown = " ".join(query.expression for query in panel_queries("1m"))
    known = {each.name for each in exported()}
    for name in known:
        on_panel = re.search(rf"\b{name}(_bucket|_sum|_count)?\b", shown) is not None
        assert on_panel != (name in NOT_SHOWN), f"{name}: add a panel, or a reason why not"
    assert all(len(reason) > 20 for reason in NOT_SHOWN.values())


def test_what_the_server_exports_beside_its_own_metrics_has_a_reason_too() -> None:
    metrics.describe_build("0", "reference")
    names = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in REGISTRY.collect()
    }
    assert {name for name in names if not name.startswith("sru_")} <= NOT_SHOWN.keys()
    assert {name for name in names if name.startswith("sru_")} == {e.name for e in exported()}


@each_board
def test_every_panel_has_a_unit_a_title_and_advice(name: str) -> None:
    for panel in panels(ALL[name]):
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert written(1.5, panel["fieldConfig"]["defaults"]["unit"])
        assert len(panel["description"]) > 60, panel["title"]
        assert ADVICE.search(panel["description"]), f"{panel['title']} does not say what to do"


@each_board
def test_every_setting_that_a_panel_names_exists(name: str) -> None:
    known = {variable_name(field) for field in Settings.model_fields}
    for panel in panels(ALL[name]):
        assert set(re.findall(r"SRUSERVE_[A-Z_]+", panel["description"])) <= known, panel["title"]


@each_board
def test_a_dashboard_lets_one_choose_data_source_models_and_instances(name: str) -> None:
    by_name: dict[str, Any] = {v["name"]: v for v in ALL[name]["templating"]["list"]}
    assert list(by_name) == ["datasource", "model", "instance"]
    assert by_name["datasource"]["query"] == "prometheus"
    for choice in (by_name["model"], by_name["instance"]):
        assert choice["multi"]
        assert choice["includeAll"]
        assert choice["datasource"]["uid"] == SOURCE.uid
    for panel in panels(ALL[name]):
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source["uid"] == SOURCE.uid for source in sources), panel["title"]


@each_board
def test_every_query_of_the_server_is_limited_to_the_chosen_instances(name: str) -> None:
    for panel in panels(ALL[name]):
        for target in panel["targets"]:
            for matchers in re.findall(r"\bsru_\w+{([^}]*)}", target["expr"]):
                assert 'instance=~"$instance"' in matchers, target["expr"]
            assert not re.search(r"\bsru_\w+(?!\w|{)", target["expr"]), target["expr"]


@each_board
def test_panels_do_not_overlap_and_have_ids_of_their_own(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in ALL[name]["panels"]:
        at = panel["gridPos"]
        across, down = range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
        cells = {(x, y) for x in across for y in down}
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in ALL[name]["panels"]]
    assert len(set(ids)) == len(ids)


@each_board
def test_the_docs_have_a_picture_of_every_panel(name: str) -> None:
    picture = (PICTURES / f"{name}.svg").read_text()
    for panel in panels(ALL[name]):
        assert f">{panel['title']}<" in picture, "run python -m deploy.grafana.live"
    assert ">no data<" not in picture


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "s", "12.3 ms"),
        (0.0000042, "s", "4.2 µs"),
        (0, "s", "0 s"),
        (7, "s", "7 s"),
        (600, "s", "10 min"),
        (0.031, "percentunit", "3.1 %"),
        (3 << 19, "bytes", "1.5 MiB"),
        (12, "bytes", "12 B"),
        (12345, "short", "12.3k"),
        (2.5, "reqps", "2.5 req/s"),
    ],
)
def test_values_in_pictures_have_their_unit(value: float, unit: str, text: str) -> None:
    assert written(value, unit) == text
