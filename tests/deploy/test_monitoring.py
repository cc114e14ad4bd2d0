"""A real Prometheus scrapes a real server under load: every query returns what it should."""

import math
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy.grafana.live import load, prometheus, server
from deploy.grafana.live.expressions import (
    PanelQuery,
    boards,
    panel_queries,
    panels,
    rules,
    selectors,
    variables,
)
from deploy.grafana.live.picture import drawn, shown_lines
from deploy.grafana.live.prometheus import Prometheus, Sample
from tests.server.observing import until
from tests.server.ports import free_port

INSTANCE, INTERVAL = "sruserve-1:8000", "20s"
_SCRAPE_SECONDS = 0.8
_LABEL = re.compile(r"{{(\w+)}}")
# A value that a healthy server does not have, so no sample has it.
_UNHEALTHY = re.compile(r'kernel="reference"')

# Of another program, which `test_haproxy_metrics.py` starts.
_OTHER_JOB = re.compile(r'job="sruserve-\w+"')


def own_selectors(rule: dict[str, str]) -> list[tuple[str, str]]:
    """The selectors of a rule that ask for metrics of the server."""
    return [each for each in selectors(rule["expr"]) if not _OTHER_JOB.search(each[1])]


ABOUT_SERVERS = [
    rule for rule in rules("alert") if own_selectors(rule) or 'job="sruserve-' not in rule["expr"]
]


def program(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"needs the system package {package} (apt-get install {package})")
    return path


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus whose server has had traffic of every kind, and still has."""
    folder: Path = tmp_path_factory.mktemp("prometheus")
    redis_server, prometheus_server = (
        program("redis-server", "redis-server"),
        program("prometheus", "prometheus"),
    )
    with ExitStack() as stack:
        redis_port = free_port()
        stack.enter_context(server.redis(redis_server, redis_port, folder))
        address = stack.enter_context(server.serving(redis_port))
        running = prometheus.scraping(
            prometheus_server, free_port(), folder, {INSTANCE: address}, _SCRAPE_SECONDS
        )
        scraped = stack.enter_context(running)
        until(lambda: bool(scraped.vector("sru_requests_total")))
        client = stack.enter_context(load.client_of(address))
        stack.enter_context(load.traffic(address, lambda: 0.5))
        load.crowd(client)
        yield scraped


def fault(samples: list[Sample]) -> str:
    """What is wrong with the vector of a query; an empty string if nothing is."""
    if not samples:
        return "no data"
    if any(math.isnan(sample.value) for sample in samples):
        return "NaN where there is traffic"
    return ""


def name_of(legend: str, sample: Sample) -> str:
    """The name of a line in a panel."""
    for label, value in sample.labels.items():
        legend = legend.replace("{{" + label + "}}", value)
    return legend


def check(scraped: Prometheus, expression: str) -> list[Sample]:
    """The samples of a query as soon as it has numbers; fails with what is wrong."""
    deadline = time.monotonic() + 60
    while problem := fault(samples := scraped.vector(expression)):
        assert time.monotonic() < deadline, f"{expression}: {problem}"
        time.sleep(0.1)
    return samples


@pytest.mark.parametrize(
    "query", panel_queries(INTERVAL), ids=lambda query: f"{query.board}-{query.panel}"
)
def test_every_query_of_every_panel_returns_numbers(scraped: Prometheus, query: PanelQuery) -> None:
    samples = check(scraped, query.expression)
    for label in _LABEL.findall(query.legend):
        assert all(sample.labels.get(label) for sample in samples), f"a line without {label}"
    names = [name_of(query.legend, sample) for sample in samples]
    assert len(set(names)) == len(names), "lines with the same name"


def test_a_panel_of_one_number_gets_one(scraped: Prometheus) -> None:
    numbers = {
        (name, panel["title"])
        for name, board in boards().items()
        for panel in panels(board)
        if panel["type"] == "stat"
    }
    queries = [q for q in panel_queries(INTERVAL) if (q.board, q.panel) in numbers]
    assert len(queries) == len(numbers)
    for query in queries:
        assert len(check(scraped, query.expression)) == 1, query.panel


@pytest.mark.parametrize(("metric", "label"), sorted(variables()))
def test_every_variable_has_choices(scraped: Prometheus, metric: str, label: str) -> None:
    values = scraped.label_values(metric, label)
    assert {"model": load.CLASSIFIER, "instance": INSTANCE}[label] in values


@pytest.mark.parametrize("rule", rules("record"), ids=lambda rule: rule["record"])
def test_every_recording_rule_records_numbers(scraped: Prometheus, rule: dict[str, str]) -> None:
    check(scraped, rule["record"])


@pytest.mark.parametrize("rule", ABOUT_SERVERS, ids=lambda rule: rule["alert"])
def test_everything_that_an_alert_compares_exists(
    scraped: Prometheus, rule: dict[str, str]
) -> None:
    selectors = own_selectors(rule)
    assert selectors, "an alert on nothing"
    for metric, matchers in selectors:
        check(scraped, metric + _UNHEALTHY.sub("", matchers))


def test_prometheus_evaluates_every_rule(scraped: Prometheus) -> None:
    names = {rule["record"] for rule in rules("record")} | {r["alert"] for r in rules("alert")}
    until(lambda: all(rule["health"] == "ok" for rule in scraped.rules()))
    assert {rule["name"] for rule in scraped.rules()} == names


def test_an_alert_notices_states_that_are_refused(scraped: Prometheus) -> None:
    pending = 'ALERTS{alertname="SruserveStatesRefused", alertstate="pending", severity="warning"}'
    assert {s.labels["model"] for s in check(scraped, pending)} <= {load.CLASSIFIER, load.WRITER}
    assert not scraped.vector('ALERTS{alertname="SruserveDown", alertstate="firing"}')


def test_what_both_workers_count_and_use_is_there(scraped: Prometheus) -> None:
    assert len(check(scraped, "sru_worker_memory_bytes > 5e7")) == 2
    assert len(check(scraped, "rate(sru_worker_cpu_seconds_total[20s])")) == 2
    (limit,) = check(scraped, f'sru_queue_limit_requests{{model="{load.CLASSIFIER}"}}')
    assert limit.value == 2 * 16


def test_every_panel_is_drawn_with_its_data(scraped: Prometheus) -> None:
    end = time.time()
    begin = end - 30

    def read(query: str) -> list[prometheus.Line]:
        return scraped.lines(query, begin, end, 1)

    for board in boards().values():
        picture = drawn(board, read, begin, end, INTERVAL)
        assert ">no data<" not in picture
        for panel in panels(board):
            lines = shown_lines(panel, read, INTERVAL)
            assert any(line.points for line in lines), panel["title"]
            assert all("{{" not in line.name for line in lines), panel["title"]
