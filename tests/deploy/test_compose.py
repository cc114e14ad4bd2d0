"""`docker compose up` opens nothing to the network, and its parts find each other."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sruserve.server.ending import KILL_SECONDS
from sruserve.server.repository.discovery import find_models
from sruserve.server.repository.host_memory import host_bytes
from sruserve.server.settings import PREFIX, Settings, load_settings, variable_name

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SERVER = SERVICES["sruserve"]
GPU: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.gpu.yml").read_text())
GPU_SERVER: dict[str, Any] = GPU["services"]["sruserve"]

each_service = pytest.mark.parametrize("name", SERVICES)
each_pulled_service = pytest.mark.parametrize("name", ["prometheus", "grafana"])


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


@each_service
def test_every_published_port_is_on_the_loopback_interface(name: str) -> None:
    service = SERVICES[name]
    assert service["ports"], "nobody could reach it"
    assert all(str(port).startswith("127.0.0.1:") for port in service["ports"])
    assert "network_mode" not in service


@each_service
def test_no_service_can_gain_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert "privileged" not in service
    assert "cap_add" not in service


@each_pulled_service
def test_pulled_images_are_pinned_and_do_not_run_as_root(name: str) -> None:
    image = SERVICES[name]["image"]
    pinned = rf"\${{{name.upper()}_IMAGE:-[a-z/]+:v?\d+\.\d+\.\d+}}"
    assert re.fullmatch(pinned, image), f"{image} may be another one tomorrow, or has no variable"
    assert int(SERVICES[name]["user"].split(":")[0]) > 0


@each_pulled_service
def test_a_service_starts_when_what_it_reads_is_healthy(name: str) -> None:
    awaited = {"prometheus": "sruserve", "grafana": "prometheus"}[name]
    assert SERVICES[name]["depends_on"] == {awaited: {"condition": "service_healthy"}}
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"


def test_the_server_is_built_from_the_cpu_target_with_its_own_health_check() -> None:
    assert SERVER["build"]["target"] == "cpu"
    assert "healthcheck" not in SERVER
    assert "user" not in SERVER
    assert "\nHEALTHCHECK " in (ROOT / "Dockerfile").read_text()


def test_the_image_that_all_is_built_on_is_that_of_the_dockerfile_unless_it_is_pinned() -> None:
    (default,) = re.findall(r"^ARG PYTHON_IMAGE=(.*)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert SERVER["build"]["args"]["PYTHON_IMAGE"] == f"${{PYTHON_IMAGE:-{default}}}"


@each_service
def test_no_service_may_take_all_memory_and_each_is_started_again(name: str) -> None:
    service = SERVICES[name]
    limit = re.fullmatch(r"(?:\$\{MEMORY_LIMIT:-)?(\d+)([mg])\}?", service["mem_limit"])
    assert limit is not None
    assert int(limit[1]) << {"m": 0, "g": 10}[limit[2]] <= 7 << 10
    assert service["restart"] == "unless-stopped"


def test_the_servers_cpu_time_is_limited_only_by_the_operator() -> None:
    assert SERVER["cpus"] == "${CPU_LIMIT:-0}"
    assert "`CPU_LIMIT`" in (ROOT / "docs" / "deployment.md").read_text()


def test_the_server_has_room_for_what_its_settings_allow_the_bundled_models_to_hold() -> None:
    settings = load_settings()
    assert host_bytes(settings, find_models(settings)) <= 7 << 30
    assert SERVER["mem_limit"] == SERVER["memswap_limit"] == "${MEMORY_LIMIT:-7g}"


def test_the_server_writes_only_to_temporary_memory() -> None:
    assert SERVER["read_only"] is True
    assert [mount.split(":")[0] for mount in SERVER["tmpfs"]] == ["/tmp"]
    assert all(mount.endswith(":ro") for mount in SERVER["volumes"])


def test_every_variable_of_the_server_is_one_of_its_settings() -> None:
    known = {variable_name(field) for field in Settings.model_fields}
    settings = {name for name in SERVER["environment"] if name.startswith(PREFIX)}
    assert settings <= known
    assert {"SRUSERVE_MODELS", "SRUSERVE_STATE_KEYS"} <= settings


def test_models_are_left_unset_unless_the_operator_names_them() -> None:
    assert SERVER["environment"]["SRUSERVE_MODELS"] is None, "an empty value would be a folder"


def test_each_request_has_a_line_unless_the_operator_says_otherwise() -> None:
    assert SERVER["environment"]["SRUSERVE_ACCESS_LOG"] == "${SRUSERVE_ACCESS_LOG:-true}"


def test_secrets_have_no_default() -> None:
    server = SERVER["environment"]["SRUSERVE_STATE_KEYS"]
    grafana = SERVICES["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"]
    assert server.startswith("${SRUSERVE_STATE_KEYS:?")
    assert grafana.startswith("${GRAFANA_ADMIN_PASSWORD:?")


def test_grafana_shows_nothing_without_a_login() -> None:
    assert SERVICES["grafana"]["environment"]["GF_AUTH_ANONYMOUS_ENABLED"] == "false"


def test_a_stop_waits_for_as_long_as_the_server_drains() -> None:
    drain_seconds = Settings.model_fields["drain_seconds"].default
    grace_seconds = int(SERVER["stop_grace_period"].removesuffix("s"))
    assert grace_seconds >= drain_seconds + KILL_SECONDS


def test_prometheus_scrapes_the_port_of_the_server() -> None:
    (job,) = load("deploy/prometheus/prometheus.yml")["scrape_configs"]
    (discovery,) = job["dns_sd_configs"]
    port = Settings.model_fields["port"].default
    assert discovery["names"] == ["sruserve"]
    assert discovery["port"] == port
    assert SERVER["ports"][0].endswith(f":{port}")


def test_prometheus_can_scrape_servers_with_tls_by_the_lines_in_comments() -> None:
    text = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    plain, comment, rest = text.partition("    # scheme: ")
    (job,) = yaml.safe_load(plain + re.sub(r"^    # ", "    ", comment + rest, flags=re.M))[
        "scrape_configs"
    ]
    assert job["scheme"] == "https"
    assert job["tls_config"].keys() == {"ca_file", "server_name", "cert_file", "key_file"}


def test_the_settings_of_tls_logs_and_traces_are_passed_on() -> None:
    names = ("TLS_CERT", "TLS_KEY", "TLS_CLIENT_CA", "LOG_LEVEL", "LOG_FORMAT", "TRACES")
    passed = {*(PREFIX + name for name in names), "OTEL_EXPORTER_OTLP_ENDPOINT"}
    assert passed <= SERVER["environment"].keys()
    assert all(SERVER["environment"][name] is None for name in passed)


def test_prometheus_finds_its_configuration_and_its_rules() -> None:
    assert "./deploy/prometheus:/etc/prometheus:ro" in SERVICES["prometheus"]["volumes"]
    assert "--config.file=/etc/prometheus/prometheus.yml" in SERVICES["prometheus"]["command"]
    for pattern in load("deploy/prometheus/prometheus.yml")["rule_files"]:
        assert list((ROOT / "deploy" / "prometheus").glob(pattern)), pattern


def test_grafana_reads_prometheus_and_finds_its_dashboards() -> None:
    (source,) = load("deploy/grafana/provisioning/datasources/prometheus.yml")["datasources"]
    (provider,) = load("deploy/grafana/provisioning/dashboards/sruserve.yml")["providers"]
    scrape = load("deploy/prometheus/prometheus.yml")["global"]["scrape_interval"]
    folder = provider["options"]["path"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == scrape
    assert f"./deploy/grafana/dashboards:{folder}:ro" in SERVICES["grafana"]["volumes"]
    assert home == f"{folder}/overview.json"


@each_service
def test_every_mounted_file_is_in_the_repository(name: str) -> None:
    for mount in SERVICES[name]["volumes"]:
        source = mount.split(":")[0]
        if source.startswith("./"):
            assert (ROOT / source).exists(), source


def test_every_named_volume_is_declared() -> None:
    named = {
        mount.split(":")[0]
        for service in SERVICES.values()
        for mount in service["volumes"]
        if mount[0].isalpha()
    }
    assert named | {"models", "tls"} == COMPOSE["volumes"].keys()


def test_the_gpu_file_reserves_one_gpu_for_the_image_that_can_use_it() -> None:
    (device,) = GPU_SERVER["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    assert GPU_SERVER["build"] == {"target": "gpu"}
    assert GPU_SERVER["image"] != SERVER["image"], "one build would take the other's name"


def test_the_gpu_file_changes_nothing_that_keeps_the_server_in() -> None:
    assert GPU["services"].keys() == {"sruserve"}
    assert GPU_SERVER.keys() == {"build", "image", "environment", "volumes", "deploy"}


def test_the_settings_of_the_gpu_file_exist_and_are_left_unset_unless_named() -> None:
    assert GPU_SERVER["environment"].keys() <= {variable_name(f) for f in Settings.model_fields}
    assert set(GPU_SERVER["environment"].values()) == {None}


def test_compiled_kernels_are_kept_in_a_volume_because_a_tmpfs_is_not_executable() -> None:
    (mount,) = GPU_SERVER["volumes"]
    name, folder = mount.split(":")
    assert GPU["volumes"].keys() == {name}
    assert f"TRITON_CACHE_DIR={folder} " in (ROOT / "Dockerfile").read_text()
    assert not any(folder.startswith(place.split(":")[0]) for place in SERVER["tmpfs"])


@pytest.mark.parametrize("name", ["docker-compose.yml", "docker-compose.gpu.yml"])
def test_the_deployment_guide_tells_of_every_file_and_variable(name: str) -> None:
    guide = (ROOT / "docs" / "deployment.md").read_text()
    assert name in guide
    for variable in load(name)["services"]["sruserve"]["environment"]:
        assert f"`{variable}" in guide, variable
