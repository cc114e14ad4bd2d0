"""Prometheus reads HAProxy's own metrics, with the names that the alerts expect."""

import subprocess
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from bench.serve.processes import free_port
from deploy.grafana.live.expressions import rules, selectors
from tests.deploy.test_rolling_restart import haproxy
from tests.server.observing import until

CONFIG = (Path(__file__).parents[2] / "deploy/haproxy.cfg").read_text()


def test_haproxy_exports_what_the_alerts_ask_for_and_sees_that_no_replica_is_left(
    tmp_path: Path,
) -> None:
    metrics = free_port()
    text = CONFIG.replace("127.0.0.1:8404", f"127.0.0.1:{metrics}")
    for port in (8080, 8081):
        text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}")
    text = text.replace("10.0.0.", "127.0.0.").replace("/run/haproxy", str(tmp_path))
    text = text.replace(":8000", ":1").replace(":8001", ":1")  # where nothing listens
    (tmp_path / "haproxy.cfg").write_text(text)
    process = subprocess.Popen([haproxy(), "-f", str(tmp_path / "haproxy.cfg")])
    address = f"http://127.0.0.1:{metrics}"

    def active() -> dict[str, float]:
        """The replicas that each backend uses."""
        try:
            page = httpx.get(f"{address}/metrics").text
        except httpx.TransportError:
            return {}
        return {
            sample.labels["proxy"]: sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name in names
        }

    names = {
        name
        for rule in rules("alert")
        for name, _ in selectors(rule["expr"])
        if name.startswith("haproxy_")
    }
    assert names
    try:
        until(lambda: active() == {"replicas": 0, "grpc_replicas": 0})
        assert httpx.get(f"{address}/").status_code == 404
    finally:
        process.kill()
        process.wait()
