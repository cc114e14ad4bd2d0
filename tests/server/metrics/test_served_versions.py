"""Which weights a server serves is a metric, so that replicas can be compared."""

from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import Serve
from tests.server.observing import metric, until
from tests.server.repository.changing_models import change, save_version


def served(client: httpx.Client, name: str) -> dict[tuple[str, str], str]:
    """What each version of a model is for, by its number and digest."""
    states = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if sample.name == "sru_model_info" and sample.labels["model"] == name:
                assert sample.value == 1
                of = sample.labels
                states[of["version"], of["digest"]] = of["state"]
    return states


def listed(client: httpx.Client, model: str) -> tuple[str, str]:
    """The number and the beginning of the digest of a version, as clients see them."""
    described = client.get(f"/v1/models/{model}").json()
    return described["version"], described["digest"][:16]


def test_each_served_version_has_a_series_with_its_digest_and_an_ended_one_has_none(
    serve: Serve, tmp_path: Path
) -> None:
    save_version(tmp_path / "compared", 1)
    with serve(models=tmp_path, model_folders=(), model_control=True) as (client, _):
        first = listed(client, "compared")
        assert served(client, "compared") == {first: "current"}
        save_version(tmp_path / "compared", 2)
        assert change(client, "compared", "load").status_code == 200
        second = listed(client, "compared")
        assert served(client, "compared") == {first: "older", second: "current"}
        assert change(client, "compared@1", "unload").status_code == 200
        until(lambda: served(client, "compared") == {second: "current"})
        assert change(client, "compared", "unload").status_code == 200
        until(lambda: served(client, "compared") == {})


def test_the_limit_of_versions_is_a_metric(serve: Serve) -> None:
    with serve("question", model_versions=3) as (client, _):
        assert metric(client, "sru_model_versions_limit") == 3
