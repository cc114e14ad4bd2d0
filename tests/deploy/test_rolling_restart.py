"""Three replicas behind HAProxy, with deploy/haproxy.cfg, are restarted in turn under load."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.serve.rolling.clients import KINDS, Client, Complete
from bench.serve.rolling.cluster import PROGRAMS, Cluster
from bench.serve.rolling.run import Outcome, roll

ROOT = Path(__file__).parents[2]
_PAUSE_SECONDS = 0.05  # so that the load leaves the replicas time to start
_CLIENTS: tuple[type[Client], ...] = (*KINDS, Complete)


def haproxy() -> str:
    program = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if program is None:
        pytest.skip("haproxy is not installed")
    return program


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    haproxy()
    for program in PROGRAMS[1:]:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")

    async def run() -> Outcome:
        with Cluster(tmp_path_factory.mktemp("cluster"), drain_seconds=0) as cluster:
            clients = [kind(cluster, n, _PAUSE_SECONDS) for n, kind in enumerate(_CLIENTS)]
            return await roll(cluster, clients)

    return asyncio.run(run())


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


def test_haproxy_has_no_complaint_about_its_configuration() -> None:
    command = [haproxy(), "-c", "-f", str(ROOT / "deploy/haproxy.cfg")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stdout + checked.stderr
