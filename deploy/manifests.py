"""Write deploy/kubernetes/ from the Helm chart, which is the one source: python deploy/manifests.py

Helm itself renders the chart, as a library (`helm-python-sdk`, of the extra `test`). Objects of
other operators get folders of their own, which `kubectl apply --filename` does not enter.
"""

from pathlib import Path
from typing import Any

import helm_python

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy/helm/sruserve"
FOLDER = ROOT / "deploy/kubernetes"
NAME = NAMESPACE = "sruserve"
# Everything that the chart can make. The rest are its defaults.
VALUES: dict[str, Any] = {
    "podMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
}
AUTOSCALED: dict[str, Any] = {"autoscaling": {"enabled": True}}
FOLDERS = {
    "podmonitor.yaml": "prometheus-operator",
    "prometheusrule.yaml": "prometheus-operator",
    "dashboards.yaml": "grafana",
    "scaledobject.yaml": "keda",
}
_HEAD = "# Generated from deploy/helm/sruserve by deploy/manifests.py: change the chart instead.\n"


def render(values: dict[str, Any] | None = None) -> dict[str, str]:
    """Return the chart's objects as YAML, by the name of their template."""
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values or {})
        rendered = chart.render(values, name=NAME, namespace=NAMESPACE)
    files = {path.rsplit("/", 1)[1]: text.strip() for path, text in rendered.items()}
    return {name: text for name, text in files.items() if text and name.endswith(".yaml")}


def manifests() -> dict[Path, str]:
    """Return the files of deploy/kubernetes/ and their content."""
    objects = render(VALUES) | {"scaledobject.yaml": render(AUTOSCALED)["scaledobject.yaml"]}
    return {
        FOLDER / FOLDERS.get(name, "") / name: f"{_HEAD}{text}\n" for name, text in objects.items()
    }


def main() -> None:
    for path, text in manifests().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
