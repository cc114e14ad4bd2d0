"""A real Prometheus with the rules of this repository, and questions to it."""

import math
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import yaml

FOLDER = Path(__file__).parents[2] / "prometheus"
_START_SECONDS = 60.0


class Sample(NamedTuple):
    """A series of a vector with its value now."""

    labels: Mapping[str, str]
    value: float


class Line(NamedTuple):
    """A series over time: points of Unix time and value, without NaN."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


class Prometheus:
    """The HTTP API of a Prometheus."""

    def __init__(self, address: str) -> None:
        self._client = httpx.Client(base_url=address, timeout=60, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def vector(self, expression: str) -> list[Sample]:
        """The instant vector of a query; raises if it is of another kind."""
        data = self._ask("query", query=expression)
        assert data["resultType"] == "vector", f"{expression} is a {data['resultType']}"
        return [Sample(each["metric"], float(each["value"][1])) for each in data["result"]]

    def lines(self, expression: str, begin: float, end: float, step: float) -> list[Line]:
        """A query at each step between two Unix times."""
        data = self._ask("query_range", query=expression, start=begin, end=end, step=step)
        lines = []
        for each in data["result"]:
            points = [(float(at), float(value)) for at, value in each["values"]]
            lines.append(Line(each["metric"], [p for p in points if not math.isnan(p[1])]))
        return lines

    def label_values(self, metric: str, label: str) -> list[str]:
        """The values of a metric's label."""
        values: list[str] = self._ask(f"label/{label}/values", **{"match[]": metric})
        return values

    def rules(self) -> list[dict[str, Any]]:
        """All rules with their state and their last error."""
        groups = self._ask("rules")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def is_ready(self) -> bool:
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def _ask(self, path: str, **parameters: str | float) -> Any:
        reply = self._client.get(f"/api/v1/{path}", params=parameters).json()
        assert reply["status"] == "success", f"{parameters}: {reply.get('error')}"
        return reply["data"]


@contextmanager
def scraping(
    program: str, port: int, folder: Path, instances: Mapping[str, str], seconds: float
) -> Iterator[Prometheus]:
    """A Prometheus that keeps its data in `folder`.

    instances: the addresses of the servers by the names that they get. seconds: between scrapes.
    """
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    interval = f"{round(1000 * seconds)}ms"
    config["global"] = dict.fromkeys(("scrape_interval", "scrape_timeout"), interval)
    config["global"]["evaluation_interval"] = f"{round(2000 * seconds)}ms"
    config["rule_files"] = [str(FOLDER / pattern) for pattern in config["rule_files"]]
    (job,) = config["scrape_configs"]
    del job["dns_sd_configs"]
    job["static_configs"] = [
        {"targets": [address.removeprefix("http://")], "labels": {"instance": name}}
        for name, address in instances.items()
    ]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{port}"
    command = [program, f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address={address}", "--log.level=error"]
    process = subprocess.Popen(command)
    prometheus = Prometheus(f"http://{address}")
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not prometheus.is_ready():
            assert process.poll() is None, "Prometheus ended"
            assert time.monotonic() < deadline, "Prometheus does not start"
            time.sleep(0.05)
        yield prometheus
    finally:
        prometheus.close()
        process.terminate()
        process.wait(60)
