"""Check objects of Kubernetes, and of its operators, against their schemas."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

_SCHEMAS = Path(__file__).parent / "schemas"
_OLDEST = "1.30.0"  # the chart's kubeVersion
_VERSIONS = (_OLDEST, kubernetes_validate.latest_version())


def objects(text: str) -> list[dict[str, Any]]:
    """Return the documents of a YAML file."""
    return [each for each in yaml.safe_load_all(text) if each is not None]


def validate(each: dict[str, Any]) -> None:
    """Raise if Kubernetes, or the operator of an own kind, would refuse an object."""
    schema = _SCHEMAS / f"{each['kind']}.json"
    if schema.exists():
        jsonschema.validate(each, json.loads(schema.read_text()))
        return
    for version in _VERSIONS:
        kubernetes_validate.validate(each, version, strict=True)


def validate_pod(containers: list[Any], volumes: list[Any]) -> None:
    """Raise if Kubernetes would refuse a pod with these."""
    spec = {"containers": containers, "volumes": volumes}
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec})
