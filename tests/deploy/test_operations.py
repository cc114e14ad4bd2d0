"""What docs/operations.md says is so: commands run, links lead somewhere, sums are right."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import helm_python
import pytest

from bench.report.tables import number
from bench.serve.rolling.clients import RETRIES
from deploy.manifests import CHART
from sruserve.model.bundled import BUNDLED
from sruserve.model.folder import load_model
from sruserve.server.ending import EXIT_USAGE, KILL_SECONDS
from sruserve.server.settings import Settings
from tests.deploy.kubernetes import objects

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "operations.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = [text for language, text in BLOCKS if language == "sh"]
SHOWN = [text for language, text in BLOCKS if not language]
NUMBERS = r"[\d,.\u00d7/+() ]"
SUMS = re.findall(rf"^({NUMBERS}+?) = ([\d,.]+)(?:  |$)", PAGE, re.MULTILINE)
SIZING, PEERS = "sizing-amd-epyc-2-cores-avx512", "serve-peers-amd-epyc-2-cores-avx512"


def slug(heading: str) -> str:
    """The anchor of a heading, as the hosts of repositories make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def results(name: str) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((ROOT / f"bench/results/{name}.json").read_text())
    return stored


def checked(name: str) -> dict[str, float]:
    """The stored figures of a benchmark, by their labels."""
    return {each["what"]: each["value"] for each in results(name)["checks"]}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command: str) -> None:
    for program in ("haproxy", "openssl"):
        if command.startswith(program) and shutil.which(program, path=path()) is None:
            pytest.skip(f"{program} is not installed")
    environment = os.environ | {"PATH": path(), "PYTHONPATH": str(ROOT)}
    script = ("bash", "-euo", "pipefail", "-c", command)
    run = subprocess.run(
        script, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def path() -> str:
    return f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"


def test_each_shown_script_is_one_that_bash_reads() -> None:
    assert SHOWN
    for script in SHOWN:
        if not re.match(f"{NUMBERS}+ =", script):
            subprocess.run(("bash", "-n"), input=script, text=True, check=True)


def test_helm_accepts_the_values_of_the_shown_command() -> None:
    (line,) = [line for script in SHOWN for line in script.splitlines() if "helm upgrade" in line]
    words = shlex.split(line)
    values: dict[str, Any] = {}
    for flag, value in pairwise(words):
        if flag == "--set":
            for name, each in helm_python.parse_set_string(value).items():
                values.setdefault(name, {}).update(each)
    assert values
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        assert chart.render(values, name="sruserve", namespace="sruserve")


def test_every_value_that_the_page_names_is_in_the_chart() -> None:
    with helm_python.Chart.load(CHART) as chart:
        values = chart.values
    section = PAGE.partition("## Kubernetes")[2].partition("## KServe")[0]
    names = re.findall(r"^\| `([a-z]\w+(?:\.\w+)*)`", section, re.MULTILINE)
    assert len(names) > 10
    for name in names:
        value: Any = values
        for part in name.split("."):
            assert part in value, name
            value = value[part]


def test_files_and_services_that_the_page_names_exist() -> None:
    for name in re.findall(r"`(deploy/[\w./-]+)`", PAGE) + re.findall(
        r"(deploy/[\w./-]+\.\w+)", PAGE
    ):
        assert (ROOT / name).exists(), name
    services = objects((ROOT / "deploy/kubernetes/service.yaml").read_text())
    assert {each["metadata"]["name"] for each in services} == {"sruserve", "sruserve-pods"}


def test_links_lead_to_pages_and_sections() -> None:
    links = re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", PAGE)
    assert len(links) > 20
    for name, anchor in links:
        target = DOCS / name if name else DOCS / "operations.md"
        headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
        if anchor:
            assert anchor in map(slug, headings), f"{name}#{anchor}"


def test_settings_that_the_page_names_exist() -> None:
    names = set(re.findall(r"SRUSERVE_([A-Z_]+)", PAGE))
    assert {name.lower() for name in names} <= set(Settings.model_fields)
    assert Settings.model_fields["drain_seconds"].default == 20
    assert KILL_SECONDS == 13


def test_the_rules_of_grpc_are_those_that_the_rolling_restart_uses() -> None:
    (shown,) = [text for language, text in BLOCKS if language == "json"]
    assert json.loads(shown) == RETRIES


@pytest.mark.parametrize(("left", "right"), SUMS)
def test_each_sum_is_right(left: str, right: str) -> None:
    value = eval(left.replace(",", "").replace("\u00d7", "*"), {"__builtins__": {}})
    decimals = len(right.partition(".")[2])
    assert f"{value:,.{decimals}f}" == right


def test_the_sums_are_there() -> None:
    assert len(SUMS) > 8


def test_the_example_uses_the_state_of_the_bundled_models() -> None:
    for name in ("question-type", "shakespeare"):
        bytes_of_state = load_model(BUNDLED / name).network.state_bytes
        assert f"{bytes_of_state:,}" in PAGE


def test_the_example_uses_stored_measurements() -> None:
    measured = checked(SIZING)
    for label, value in measured.items():
        shown = f"{value:.2f}" if label.endswith("alone") else f"{value:,.0f}"
        assert shown in PAGE, f"{label}: {value}"
    case = results(PEERS)["cases"]["classify, 128 connections: requests/s"]
    assert number(case["sruserve, 2 workers"]["median"]) in PAGE


def test_the_unit_of_systemd_waits_for_a_stop_and_reloads_by_sighup() -> None:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "deploy/systemd/sruserve.service")
    service = unit["Service"]
    drain_seconds = Settings.model_fields["drain_seconds"].default
    assert int(service["TimeoutStopSec"]) > drain_seconds + KILL_SECONDS
    assert service["KillMode"] == "mixed"
    assert service["Restart"] == "on-failure"
    assert int(service["RestartPreventExitStatus"]) == EXIT_USAGE
    assert service["ExecReload"].endswith("-HUP $MAINPID")
    assert f"/dev/stdin {service['EnvironmentFile']} " in PAGE
    assert service["MemoryMax"]


def test_the_written_way_to_a_service_installs_what_it_serves_and_logs_its_requests() -> None:
    section = PAGE.partition("### systemd")[2].partition("\n## ")[0]
    (extras,) = set(re.findall(r"'\.\[([\w,]+)\]'", section))  # the same for another version
    assert {"grpc", "redis", "otel"} <= set(extras.split(","))
    assert "SRUSERVE_ACCESS_LOG=true" in section


def test_the_settings_of_systemd_have_the_key_of_all_replicas_or_are_not_written(
    tmp_path: Path,
) -> None:
    """A machine that made up a key of its own would refuse the streams of the others."""
    section = PAGE.partition("### systemd")[2].partition("\n## ")[0]
    (script,) = re.findall(r"^install -D .*?^END$", section, re.DOTALL | re.MULTILINE)
    script = script.replace("/etc/sruserve", str(tmp_path / "new"))
    file = tmp_path / "new/env"
    environment = {name: value for name, value in os.environ.items() if name != "STATE_KEY"}
    command = ("bash", "-c", script)
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "the key that all replicas have" in run.stderr
    assert not file.exists()
    subprocess.run(command, env=environment | {"STATE_KEY": "a2V5"}, check=True)
    assert "SRUSERVE_STATE_KEYS=a2V5\n" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_key_in_use_is_read_back_before_it_is_replaced() -> None:
    (script,) = [text for text in SHOWN if "$OLD" in text]
    read, written = script.index("OLD=$(kubectl"), script.index("create secret")
    assert read < written
    assert "base64 --decode" in script[:written]


def test_a_server_that_loads_is_not_restarted_by_hand() -> None:
    (line,) = [line for line in PAGE.splitlines() if "Is a replica up?" in line]
    assert "starting on" in line
