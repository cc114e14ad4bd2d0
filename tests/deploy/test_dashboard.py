"""The dashboard asks only for what the server exports, in PromQL that Prometheus can read."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from sruserve.server.metrics.metrics import (
    EngineMetrics,
    RouteMetrics,
    StateMetrics,
    StreamMetrics,
    describe_build,
    first_character,
    render,
)

DEPLOY = Path(__file__).parents[2] / "deploy"
GRAFANA = DEPLOY / "grafana"
BOARD: dict[str, Any] = json.loads((GRAFANA / "dashboards" / "sruserve.json").read_text())

METRIC = re.compile(r"\bsru_[a-z_]+")
GROUPING = re.compile(r"\b(?:by|without) \(([^)]*)\)")
MATCHER = re.compile(r'(\w+)(?:=~|!~|!=|=)"')
LEGEND = re.compile(r"{{(\w+)}}")


def panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str, str]]:
    """Every query as (panel title, PromQL with Grafana's variables filled in, legend)."""
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "1m").replace("$model", ".+")
            assert "$" not in expression, f"a variable that Grafana does not know: {expression}"
            yield panel["title"], expression, target["legendFormat"]


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """The labels of every sample on `/metrics`, of a server with one model."""
    EngineMetrics("dashboard-test").states("pool", 0, 0)
    requests = RouteMetrics("dashboard-test", "/v1/completions")
    first_character("dashboard-test", 0.001)
    requests.finish("refused", 0.001, "overloaded")
    StateMetrics("dashboard-test").rejected("state_expired")
    StreamMetrics("dashboard-test")
    describe_build("0", "reference")
    labels_of_metrics: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(render()[0].decode()):
        for sample in family.samples:
            labels_of_metrics.setdefault(sample.name, set()).update(sample.labels)
    return labels_of_metrics


def test_every_query_names_only_metrics_that_the_server_exports(
    exported: dict[str, set[str]],
) -> None:
    for title, expression, _ in queries():
        names = METRIC.findall(expression)
        assert names, f"{title!r} asks for no metric: {expression}"
        assert set(names) <= exported.keys(), f"{title!r} asks for a metric that is not exported"


def test_every_label_in_a_query_is_one_that_its_metrics_have(exported: dict[str, set[str]]) -> None:
    for title, expression, legend in queries():
        used = {*MATCHER.findall(expression), *LEGEND.findall(legend)}
        used.update(re.findall(r"\w+", " ".join(GROUPING.findall(expression))))
        for name in METRIC.findall(expression):
            assert used <= exported[name], f"{title!r}: {name} has not all of {used}"


def test_everything_that_the_server_exports_is_on_the_dashboard(
    exported: dict[str, set[str]],
) -> None:
    shown = {_family(name) for _, query, _ in queries() for name in METRIC.findall(query)}
    families = {_family(name) for name in exported if name.startswith("sru_")}
    assert families - shown == set(), "add a panel, or nobody will look at it"


def _family(sample: str) -> str:
    return re.sub(r"_(bucket|sum|count|total)$", "", sample)


def test_the_list_of_models_comes_from_a_metric_that_the_server_exports(
    exported: dict[str, set[str]],
) -> None:
    variable = next(v for v in BOARD["templating"]["list"] if v["name"] == "model")
    question = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
    assert question is not None
    metric, label = question.groups()
    assert label in exported[metric]


def test_every_panel_teaches_has_a_unit_and_reads_the_chosen_data_source() -> None:
    for panel in panels():
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source["uid"] == "${datasource}" for source in sources), panel["title"]


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_prometheus_can_parse_every_query(tmp_path: Path, promtool: str) -> None:
    rules = [
        {"record": f"dashboard:query:{number}", "expr": expression}
        for number, (_, expression, _) in enumerate(queries())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def test_prometheus_accepts_its_configuration(promtool: str) -> None:
    done = subprocess.run(
        [promtool, "check", "config", str(DEPLOY / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def promtool() -> str:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("needs the system package prometheus (apt-get install prometheus)")
    return path
