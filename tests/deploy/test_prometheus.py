"""The rules of Prometheus: each alert fires when it has to, and at no other time."""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Histogram

from deploy.grafana.generate.tables import exported
from deploy.grafana.live.expressions import RULES, panel_queries, rules, selectors
from sruserve.kernels import kernel_name
from sruserve.server.app import Application
from sruserve.server.errors import ServeError
from sruserve.server.kserve.grpc.service import GrpcService
from sruserve.server.metrics import definitions
from sruserve.server.settings import Settings, load_settings, variable_name
from sruserve.server.tasks.endpoint import Endpoint

FOLDER = RULES.parent
ROOT = FOLDER.parents[1]
CASES = sorted((FOLDER / "tests").glob("*.yml"))
ALERTS = rules("alert")
RECORDED = rules("record")
DOCS = (ROOT / "docs" / "monitoring.md").read_text()
VERSION_ENDS = {"over", "request", "versions", "memory", "start"}
# Of other programs: a real HAProxy has its metric in `test_haproxy_metrics.py`.
OTHERS = {
    "up": {"job", "instance"},
    "haproxy_backend_active_servers": {"job", "instance", "proxy"},
    "probe_success": {"job", "instance"},
    "probe_ssl_earliest_cert_expiry": {"job", "instance"},
}
OUTCOMES = {"ok", "invalid", "refused", "cancelled", "error", "computed", "repeated"}

each_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])


@pytest.fixture
def promtool() -> str:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("needs the system package prometheus (apt-get install prometheus)")
    return path


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def cases() -> list[dict[str, Any]]:
    """The cases of all alerts, read once."""
    return [case for file in CASES for case in yaml.safe_load(file.read_text())["tests"]]


def fired() -> dict[str, str]:
    """The labels with which each alert fires in its case."""
    return {
        expected["labels"].split('"')[1]: expected["labels"]
        for case in cases()
        for test in case.get("promql_expr_test", ())
        for expected in test["exp_samples"]
        if expected["labels"].startswith("ALERTS")
    }


def test_prometheus_accepts_its_configuration_and_rules(promtool: str) -> None:
    done = run(promtool, "check", "config", str(FOLDER / "prometheus.yml"))
    counts = [int(number) for number in re.findall(r"(\d+) rules found", done)]
    assert sum(counts) == len(ALERTS) + len(RECORDED)


def test_prometheus_accepts_the_jobs_in_comments_and_the_alerts_have_their_names(
    promtool: str, tmp_path: Path
) -> None:
    text = re.sub(
        r"^  # (?=- job_name|  )", "  ", (FOLDER / "prometheus.yml").read_text(), flags=re.M
    )
    (tmp_path / "prometheus.yml").write_text(text)
    run(promtool, "check", "config", str(tmp_path / "prometheus.yml"))
    jobs = {job["job_name"] for job in yaml.safe_load(text)["scrape_configs"]}
    watched = {name for rule in ALERTS for name in re.findall(r'job="([\w-]+)"', rule["expr"])}
    assert watched == jobs == {"sruserve", "sruserve-haproxy", "sruserve-probe"}


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_alerts_fire_and_are_silent_when_they_should(promtool: str, file: Path) -> None:
    assert "SUCCESS" in run(promtool, "test", "rules", str(file))


@each_alert
def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent(
    alert: dict[str, Any],
) -> None:
    name, severity = alert["alert"], alert["labels"]["severity"]
    assert f'severity="{severity}"' in fired()[name]
    silent = [
        test["alertname"]
        for case in cases()
        for test in case.get("alert_rule_test", ())
        if "promql_expr_test" not in case and case["input_series"] and "exp_alerts" not in test
    ]
    assert name in silent


@each_alert
def test_every_alert_says_how_bad_it_is_what_to_do_and_where_to_read_on(
    alert: dict[str, Any],
) -> None:
    notes = alert["annotations"]
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert notes["summary"]
    assert len(notes["description"]) > 80
    known = {variable_name(field) for field in Settings.model_fields}
    assert set(re.findall(r"SRUSERVE_[A-Z_]+", notes["description"])) <= known
    page, _, anchor = notes["runbook_url"].partition("#")
    assert page == "docs/monitoring.md"
    assert anchor == alert["alert"].lower()
    section = re.search(rf"^### {alert['alert']}\n(.+?)(?=^##)", DOCS + "\n## ", re.M | re.S)
    assert section is not None, "docs/monitoring.md has no section of that name"
    assert len(section[1].strip()) > 80


@each_alert
def test_the_text_of_an_alert_names_only_labels_that_it_has(alert: dict[str, Any]) -> None:
    text = " ".join(alert["annotations"].values())
    for label in re.findall(r"\$labels\.(\w+)", text):
        assert f'{label}="' in fired()[alert["alert"]]


@pytest.mark.parametrize("rule", ALERTS + RECORDED, ids=lambda r: r.get("alert") or r["record"])
def test_a_rule_asks_for_values_that_the_server_can_export(rule: dict[str, Any]) -> None:
    labels = {each.name: {*each.labels, "job", "instance"} for each in exported()}
    codes = {each.code for each in every_error(ServeError)}
    for metric, matchers in selectors(rule["expr"]):
        name = re.sub(r"_(bucket|sum|count)$", "", metric)
        for label, value in re.findall(r'(\w+)=~?"([^"]*)"', matchers):
            known = labels.get(name) or OTHERS[name]
            assert label in known, f"{metric} has no label {label}"
            values = set(value.split("|"))
            assert label != "reason" or values <= codes | VERSION_ENDS, value
            assert label != "outcome" or values <= OUTCOMES, value
            assert label != "kernel" or value in Path(str(KERNEL_SOURCE)).read_text(), value


KERNEL_SOURCE = kernel_name.__code__.co_filename


@pytest.fixture(scope="module")
def routes() -> set[str]:
    """What the label `route` can be: the paths of all endpoints of a server."""
    paths = set()
    create = Endpoint.__init__

    def record(endpoint: Endpoint[Any], *arguments: Any) -> None:
        paths.add(endpoint.path)
        create(endpoint, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Endpoint, "__init__", record)
        application = Application(load_settings(models=ROOT / "sruserve" / "demo"))
        inference = application._add_endpoints()
        turns = application.intake.turns
        GrpcService(application.settings, application.lifecycle, inference, turns)
    return paths


ROUTED = [
    *((rule.get("alert") or rule["record"], rule["expr"]) for rule in ALERTS + RECORDED),
    *((f"{query.board}-{query.panel}", query.expression) for query in panel_queries("1m")),
]


@pytest.mark.parametrize(
    "expression", [pytest.param(expr, id=name) for name, expr in ROUTED if "route=" in expr]
)
def test_every_alternative_of_a_route_matches_one_that_the_server_has(
    routes: set[str], expression: str
) -> None:
    patterns = re.findall(r'route=~?"([^"]*)"', expression)
    assert patterns
    for pattern in patterns:
        for alternative in alternatives(pattern):
            assert any(re.fullmatch(alternative, route) for route in routes), alternative


def test_the_alternatives_of_a_pattern_are_those_of_its_groups_too() -> None:
    assert alternatives("/a/(b|c)d|(POST )?/e.*") == ["/a/bd", "/a/cd", "POST /e.*", "/e.*"]


def alternatives(pattern: str) -> list[str]:
    """The patterns without `|` and without optional groups that match the same together."""
    if group := re.search(r"\(([^()]*)\)(\??)", pattern):
        choices = [*group[1].split("|"), *([""] if group[2] else [])]
        before, after = pattern[: group.start()], pattern[group.end() :]
        # a group belongs to one of the outer alternatives
        head, _, begin = before.rpartition("|")
        end, _, tail = after.partition("|")
        parts = [head, *(f"{begin}{choice}{end}" for choice in choices), tail]
        return [each for part in parts if part for each in alternatives(part)]
    return pattern.split("|")


def every_error(kind: type[ServeError]) -> set[type[ServeError]]:
    return {kind, *(each for sub in kind.__subclasses__() for each in every_error(sub))}


def test_recorded_names_that_alerts_and_dashboards_use_are_recorded() -> None:
    recorded = {rule["record"] for rule in RECORDED}
    for alert in ALERTS:
        used = {name for name, _ in selectors(alert["expr"]) if name.startswith("sruserve:")}
        assert used <= recorded, alert["alert"]


@pytest.mark.parametrize(
    ("name", "histogram"),
    [
        ("latency", definitions.REQUEST_TIME),
        ("first_character", definitions.FIRST_CHARACTER),
        ("queue", definitions.QUEUE_TIME),
    ],
)
def test_an_objective_is_the_edge_of_a_bucket_so_that_a_quantile_can_be_compared_with_it(
    name: str, histogram: Histogram
) -> None:
    (rule,) = [rule for rule in RECORDED if rule["record"] == f"sruserve:{name}_objective:seconds"]
    number = float(rule["expr"].removeprefix("vector(").removesuffix(")"))
    assert number in histogram._kwargs["buckets"]
    values = yaml.safe_load((ROOT / "deploy/helm/sruserve/values.yaml").read_text())
    assert name != "queue" or values["autoscaling"]["queueSeconds"] == number


def test_the_docs_have_the_numbers_of_the_service_level() -> None:
    for rule in RECORDED:
        if number := re.fullmatch(r"vector\(([\d.]+)\)", rule["expr"]):
            assert f"| `{rule['record']}` | {number[1]} |" in DOCS
