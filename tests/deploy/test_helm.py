"""The Helm chart makes objects that Kubernetes accepts, and the plain manifests are the chart's."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from deploy.manifests import AUTOSCALED, CHART, FOLDER, VALUES, manifests, render
from sruserve import __version__
from sruserve.server.ending import KILL_SECONDS
from sruserve.server.metrics.metrics import EngineMetrics, describe_build
from sruserve.server.metrics.metrics import render as render_metrics
from sruserve.server.settings import PREFIX, Settings
from tests.deploy.kubernetes import objects, validate

ROOT = Path(__file__).parents[2]
SECRETS: dict[str, Any] = {
    "secrets": {
        "apiKeys": {"name": "api-keys"},
        "store": {"name": "redis"},
        "tls": {"name": "certificate"},
    },
}
MUTUAL: dict[str, Any] = {
    "secrets": {
        "tls": {"name": "certificate", "clientCa": "ca.crt"},
        "otlpHeaders": {"name": "collector"},
    },
    "settings": {
        "SRUSERVE_TRACES": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.monitoring.svc:4318",
    },
    "podMonitor": {
        "enabled": True,
        "tls": {
            "ca": {"name": "certificate"},
            "cert": {"name": "prometheus"},
            "key": {"name": "prometheus"},
        },
    },
}
GPU: dict[str, Any] = {
    "gpu": {"enabled": True},
    "models": {"existingClaim": "models", "subPath": "newest"},
    "nodeSelector": {"accelerator": "h200"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
}
MODELS: dict[str, Any] = {
    "models": {"image": "registry/models:7"},
    "settings": {"SRUSERVE_WORKERS": 2, "SRUSERVE_THREADS": 1, "SRUSERVE_ACCESS_LOG": True},
    "networkPolicy": {"clients": [{"podSelector": {"matchLabels": {"app": "web"}}}]},
    "podAnnotations": {"team": "speech"},
    "image": {"digest": f"sha256:{'a' * 64}"},
    "imagePullSecrets": [{"name": "registry"}],
}
each_choice = pytest.mark.parametrize(
    "values",
    [{}, VALUES, AUTOSCALED, SECRETS, {**SECRETS, **VALUES}, MUTUAL, GPU, MODELS],
    ids=[
        "defaults",
        "monitored",
        "autoscaled",
        "secrets",
        "all secrets",
        "mutual",
        "gpu",
        "models",
    ],
)


def deployed(values: dict[str, Any]) -> dict[str, Any]:
    """The specification of the chart's deployment."""
    (deployment,) = objects(render(values)["deployment.yaml"])
    spec: dict[str, Any] = deployment["spec"]
    return spec


def pod(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The specification of the chart's pods, and of their container."""
    spec = deployed(values)["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def test_the_plain_manifests_are_what_the_chart_makes() -> None:
    files = {path: path.read_text() for path in FOLDER.rglob("*.yaml")}
    assert files == manifests(), "run: python deploy/manifests.py"


def test_the_rules_of_the_operator_are_those_of_prometheus() -> None:
    values = {"prometheusRule": {"enabled": True, "labels": {"release": "monitoring"}}}
    (rule,) = objects(render(values)["prometheusrule.yaml"])
    files = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
    groups = [each for file in files for each in yaml.safe_load(file.read_text())["groups"]]
    assert rule["spec"]["groups"] == groups
    assert len(groups) > 5
    assert rule["metadata"]["labels"]["release"] == "monitoring"
    assert "prometheusrule.yaml" not in render({})


def test_the_dashboards_of_the_sidecar_are_those_of_grafana() -> None:
    values = {"dashboards": {"enabled": True, "annotations": {"grafana_folder": "sruserve"}}}
    (config,) = objects(render(values)["dashboards.yaml"])
    files = (ROOT / "deploy/grafana/dashboards").glob("*.json")
    boards = {f"sruserve-{file.name}": file.read_text().strip() for file in files}
    assert config["data"] == boards
    assert len(boards) == 5
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert config["metadata"]["annotations"] == {"grafana_folder": "sruserve"}
    assert sum(map(len, boards.values())) < 1 << 20, "more than a ConfigMap may have"
    assert "dashboards.yaml" not in render({})


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    report = helm_python.lint(CHART, strict=True)
    assert report["errors"] == []
    assert [each for each in report["messages"] if each["severity"] > 1] == []


@each_choice
def test_kubernetes_accepts_every_object(values: dict[str, Any]) -> None:
    made = [each for text in render(values).values() for each in objects(text)]
    for each in made:
        validate(each)
        assert each["metadata"]["namespace"] == "sruserve"
    names = [(each["kind"], each["metadata"]["name"]) for each in made]
    assert len(names) == len(set(names)) >= 6


@pytest.mark.parametrize(
    "values",
    [
        {"drainSecond": 5},
        {"settings": {"SRUSERVE_STATE_KEYS": "secret"}},
        {"settings": {"SRUSERVE_API_KEYS": "acme:secret"}},
        {"settings": {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=secret"}},
        {"settings": {"HOME": "/"}},
        {"secrets": {"stateKeys": {"value": "secret"}}},
        {"image": {"digest": "latest"}},
        {"replicas": 0},
    ],
)
def test_a_value_that_is_misspelt_or_a_secret_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(helm_python.HelmValuesError):
        render(values)


@pytest.mark.parametrize(
    "values",
    [
        {"secrets": {"stateKeys": {"name": ""}}},
        {"models": {"existingClaim": "models", "image": "registry/models"}},
        {"secrets": {"tls": {"clientCa": "ca.crt"}}},
        {**MUTUAL, "podMonitor": {"enabled": True}},
        {**SECRETS, "podMonitor": {"enabled": True, "tls": {"cert": {"name": "prometheus"}}}},
    ],
)
def test_values_that_contradict_each_other_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(helm_python.HelmRenderError):
        render(values)


@pytest.mark.parametrize("drain_seconds", [0, 20, 600])
def test_a_pod_is_not_killed_before_the_server_ends_itself(drain_seconds: int) -> None:
    spec, container = pod({"drainSeconds": drain_seconds})
    assert variables(container)["SRUSERVE_DRAIN_SECONDS"] == str(drain_seconds)
    pre_stop_seconds = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    spent = pre_stop_seconds + drain_seconds + KILL_SECONDS
    assert spec["terminationGracePeriodSeconds"] > spent


def test_a_pod_gets_no_right_that_it_does_not_need() -> None:
    spec, container = pod({})
    assert spec["automountServiceAccountToken"] is spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsUser"] == 10001
    assert "10001:10001" in (ROOT / "Dockerfile").read_text()
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in (container, *pod(MODELS)[0]["initContainers"]):
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert container["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]
    (account,) = objects(render({})["serviceaccount.yaml"])
    assert account["automountServiceAccountToken"] is False


@each_choice
def test_every_variable_is_a_setting_and_no_secret_is_in_an_object(values: dict[str, Any]) -> None:
    _, container = pod(values)
    names = {name for name in variables(container) if not name.startswith("OTEL_")}
    assert {name.removeprefix(PREFIX).lower() for name in names} <= set(Settings.model_fields)
    secrets = {"SRUSERVE_STATE_KEYS", "SRUSERVE_STORE", "OTEL_EXPORTER_OTLP_HEADERS"}
    secret = secrets & set(variables(container))
    assert all("secretKeyRef" in variables(container)[name] for name in secret)
    assert "SRUSERVE_API_KEYS" not in variables(container)
    assert not any(each["kind"] == "Secret" for t in render(values).values() for each in objects(t))


def test_probes_ask_routes_that_need_no_key() -> None:
    _, container = pod({})
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness")}
    assert paths == {"startup": "/readyz", "liveness": "/livez"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    start = container["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] == 600
    live = container["livenessProbe"]
    watch_seconds = Settings.model_fields["worker_timeout_seconds"].default
    assert live["periodSeconds"] * live["failureThreshold"] > watch_seconds
    _, encrypted = pod(SECRETS)
    assert {encrypted[f"{n}Probe"]["httpGet"]["scheme"] for n in ("startup", "liveness")} == {
        "HTTPS"
    }


def test_each_request_has_a_line_unless_a_value_says_otherwise() -> None:
    assert variables(pod({})[1])["SRUSERVE_ACCESS_LOG"] == "true"
    off = {"settings": {"SRUSERVE_ACCESS_LOG": False}}
    assert variables(pod(off)[1])["SRUSERVE_ACCESS_LOG"] == "false"


def test_prometheus_trusts_the_authority_of_the_pods_and_has_a_certificate_if_they_want_one() -> (
    None
):
    _, container = pod(MUTUAL)
    names = variables(container)
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "tls"]
    assert names["SRUSERVE_TLS_CLIENT_CA"] == f"{mount['mountPath']}/ca.crt"
    assert "SRUSERVE_TLS_CLIENT_CA" not in variables(pod(SECRETS)[1])
    assert tls_of_prometheus(MUTUAL) == {
        "serverName": "sruserve.sruserve.svc",
        "ca": {"secret": {"name": "certificate", "key": "ca.crt"}},
        "cert": {"secret": {"name": "prometheus", "key": "tls.crt"}},
        "keySecret": {"name": "prometheus", "key": "tls.key"},
    }
    assert tls_of_prometheus({**SECRETS, **VALUES}) == {"serverName": "sruserve.sruserve.svc"}


def tls_of_prometheus(values: dict[str, Any]) -> dict[str, Any]:
    (monitor,) = objects(render(values)["podmonitor.yaml"])
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    tls: dict[str, Any] = endpoint["tlsConfig"]
    return tls


def test_variables_of_opentelemetry_reach_the_server() -> None:
    names = variables(pod(MUTUAL)[1])
    assert names["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector.monitoring.svc:4318"
    headers = names["OTEL_EXPORTER_OTLP_HEADERS"]["secretKeyRef"]
    assert headers == {"name": "collector", "key": "headers"}


def test_a_pod_computes_on_as_many_threads_as_it_requests_cpus_unless_a_value_says_otherwise() -> (
    None
):
    threads = variables(pod({})[1])["SRUSERVE_THREADS"]
    assert threads["resourceFieldRef"]["resource"] == "requests.cpu"
    names = [each["name"] for each in pod(MODELS)[1]["env"]]
    assert len(names) == len(set(names))
    assert variables(pod(MODELS)[1])["SRUSERVE_THREADS"] == "1"


def test_models_are_taken_from_a_volume_or_an_image_or_are_the_bundled_ones() -> None:
    assert "SRUSERVE_MODELS" not in variables(pod({})[1])
    claimed, container = pod(GPU)
    assert variables(container)["SRUSERVE_MODELS"] == "/models"
    claim = {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}, "name": "models"}
    assert claim in claimed["volumes"]
    mount = {"name": "models", "mountPath": "/models", "readOnly": True, "subPath": "newest"}
    assert mount in container["volumeMounts"]
    copied, container = pod(MODELS)
    (init,) = copied["initContainers"]
    assert init["command"] == ["cp", "-R", "/models/.", "/target"]
    assert {"name": "models", "emptyDir": {}} in copied["volumes"]


def test_a_gpu_is_a_limit_beside_the_memory() -> None:
    _, container = pod(GPU)
    assert container["resources"]["limits"] == {"memory": "7Gi", "nvidia.com/gpu": 1}
    assert "nvidia.com/gpu" not in pod({})[1]["resources"]["limits"]


def test_an_autoscaled_deployment_leaves_its_number_of_replicas_to_keda() -> None:
    assert deployed({})["replicas"] == 3
    assert "replicas" not in deployed(AUTOSCALED)
    (scaled,) = objects(render(AUTOSCALED)["scaledobject.yaml"])
    assert scaled["spec"]["scaleTargetRef"]["name"] == "sruserve"


def test_a_release_of_another_name_selects_its_own_pods_only() -> None:
    with helm_python.Chart.load(CHART) as chart:
        values = {"autoscaling": {"enabled": True}}
        texts = chart.render(values, name="blue", namespace="speech")
        deployment = yaml.safe_load(texts["sruserve/templates/deployment.yaml"])
        scaled = texts["sruserve/templates/scaledobject.yaml"]
    assert deployment["metadata"]["name"] == "blue-sruserve"
    assert deployment["spec"]["selector"]["matchLabels"]["app.kubernetes.io/instance"] == "blue"
    assert scaled.count('namespace="speech",pod=~"blue-sruserve-.+"') == 4


def test_the_chart_is_for_this_version_of_the_server() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


def queries() -> dict[str, str]:
    (scaled,) = objects(render(AUTOSCALED)["scaledobject.yaml"])
    return {each["name"]: each["metadata"]["query"] for each in scaled["spec"]["triggers"]}


def test_the_queries_of_the_autoscaler_ask_for_what_the_server_exports() -> None:
    EngineMetrics("helm-test")
    describe_build("0", "reference")
    exported = set(re.findall(r"^(sru_\w+)", render_metrics()[0].decode(), re.M))
    names = {name for query in queries().values() for name in re.findall(r"sru_\w+", query)}
    assert names
    assert names <= exported


@pytest.mark.parametrize("workers", [1, 4], ids=["one worker", "four workers"])
@pytest.mark.parametrize("slow", [0, 30], ids=["idle", "overloaded"])
def test_prometheus_computes_the_queries_of_the_autoscaler(
    tmp_path: Path, slow: int, workers: int
) -> None:
    """Two pods: no requests, or each waits for one to two seconds; one of two models computes.

    The workers of a pod add up the seconds in which they compute.
    """
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("prometheus is not installed")
    series = []
    for name in ("sruserve-a", "sruserve-b"):
        labels = f'namespace="sruserve",pod="{name}"'
        series += [{"series": f"sru_build_info{{{labels}}}", "values": "1x20"}]
        for worker in range(workers):
            memory = f'sru_worker_memory_bytes{{{labels},worker="{worker}"}}'
            series += [{"series": memory, "values": "1x20"}]
        for bound, count in (("1.0", 0), ("2.0", slow), ("+Inf", slow)):
            bucket = f'sru_queue_seconds_bucket{{{labels},model="m",le="{bound}"}}'
            series += [{"series": bucket, "values": f"0+{count}x20"}]
        for model, step in (("m", 12 if slow else 0), ("n", 6 if slow else 0)):
            seconds = f'sru_step_seconds_sum{{{labels},model="{model}"}}'
            series += [{"series": seconds, "values": f"0+{step * workers}x20"}]
    expected = {"queue-seconds": 2 * 1.95 if slow else 0, "busy": 2 * 0.8 if slow else 0}
    cases = [
        {"expr": query, "eval_time": "5m", "exp_samples": [{"value": expected[name]}]}
        for name, query in queries().items()
    ]
    for case in cases:
        case["exp_samples"][0]["labels"] = "{}"  # type: ignore[index]
    file = {"tests": [{"interval": "15s", "input_series": series, "promql_expr_test": cases}]}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(file))
    command = [program, "test", "rules", "tests.yaml"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
