"""Three replicas behind HAProxy, with deploy/haproxy.cfg, are restarted in turn under load."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bench.serve.rolling.clients import KINDS, Client, Complete
from bench.serve.rolling.cluster import PROGRAMS, Cluster, wait_until
from bench.serve.rolling.run import Outcome, roll

ROOT = Path(__file__).parents[2]
_PAUSE_SECONDS = 0.2  # so that the load leaves the replicas time to start
_CLIENTS: tuple[type[Client], ...] = (*KINDS, Complete)


def haproxy() -> str:
    program = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if program is None:
        pytest.skip("haproxy is not installed")
    return program


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    haproxy()
    for program in PROGRAMS[1:]:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    with Cluster(tmp_path_factory.mktemp("cluster"), drain_seconds=0) as running:
        yield running


@pytest.fixture(scope="module")
def outcome(cluster: Cluster) -> Outcome:
    clients = [kind(cluster, n, _PAUSE_SECONDS) for n, kind in enumerate(_CLIENTS)]
    return asyncio.run(roll(cluster, clients))


def test_no_request_fails(outcome: Outcome) -> None:
    assert outcome.failures == []
    assert all(outcome.requests.values())


def test_no_text_differs_by_a_character_from_that_of_an_undisturbed_server(
    outcome: Outcome,
) -> None:
    assert outcome.differing == []
    assert outcome.characters > 0


def test_each_replica_was_stopped_in_good_order_while_it_worked(outcome: Outcome) -> None:
    assert outcome.exit_codes == [0, 0, 0]
    assert outcome.continued["Complete"] > 0
    assert outcome.continued["Socket"] > 0


def test_events_pass_haproxy_while_the_text_is_written_and_end_when_the_client_leaves(
    cluster: Cluster,
) -> None:
    """The text would take minutes: nothing on the way may wait for its end."""
    body = {"model": "shakespeare", "prompt": "ROMEO:", "max_tokens": 100_000, "stream": True}
    address = f"http://127.0.0.1:{cluster.port}/v1/completions"
    with httpx.stream("POST", address, json=body, timeout=60) as reply:
        assert next(reply.iter_lines()).startswith("data: ")
    wait_until(lambda: not any(each.is_generating() for each in cluster.replicas), "none computes")


def test_metrics_are_not_for_clients_of_haproxy(cluster: Cluster) -> None:
    assert httpx.get(f"http://127.0.0.1:{cluster.port}/metrics").status_code == 404
    assert httpx.get(f"http://127.0.0.1:{cluster.replicas[0].port}/metrics").status_code == 200


def test_haproxy_has_no_complaint_about_its_configuration() -> None:
    command = [haproxy(), "-c", "-f", str(ROOT / "deploy/haproxy.cfg")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stdout + checked.stderr
