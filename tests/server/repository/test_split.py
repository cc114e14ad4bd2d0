"""New requests are divided among versions by weight; what has a state stays where it is."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sruserve.server.app import Application
from sruserve.server.repository.plan import plan_at_start
from sruserve.server.repository.split import read_split
from sruserve.server.settings import SettingsError
from tests.server.conftest import Serve
from tests.server.kserve.support import connected as kserve_connected
from tests.server.kserve.support import texts as text_tensor
from tests.server.observing import metric
from tests.server.repository.changing_models import change, classify, save_version, version_of
from tests.server.websocket.talks import ask, connected, run

Running = tuple[httpx.Client, Application]


@pytest.fixture
def divided(serve: Serve, tmp_path: Path) -> Iterator[tuple[httpx.Client, Path]]:
    """A server of versions 1, 2 and 3, of which 2 and 3 divide the requests."""
    folder = tmp_path / "question"
    for version in (1, 2, 3):
        save_version(folder, version)
    write(folder, {"2": 90, "3": 10})
    settings: dict[str, Any] = {"models": tmp_path, "model_folders": (), "model_control": True}
    with serve(**settings) as (client, _):
        yield client, folder


def write(folder: Path, split: Any) -> None:
    (folder / "split.json").write_text(json.dumps(split))


def version_by_scores(client: httpx.Client) -> dict[str, str]:
    """The version that gives certain scores."""
    listed = client.get("/v1/models").json()["data"]
    return {scores(classify(client, f"question@{m['version']}")): m["version"] for m in listed}


def scores(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    return json.dumps(reply.json()["results"][0]["scores"])


def test_so_many_requests_as_the_weights_go_to_each_version(
    divided: tuple[httpx.Client, Path],
) -> None:
    client, _ = divided
    versions = version_by_scores(client)
    for _ in range(2):
        counted = Counter(versions[scores(classify(client))] for _ in range(100))
        assert counted == {"2": 90, "3": 10}
    assert scores(classify(client, "question@1")), "by its id, as ever"


def test_requests_with_a_state_take_no_turn_of_others(
    divided: tuple[httpx.Client, Path],
) -> None:
    client, folder = divided
    write(folder, {"2": 1, "3": 1})
    assert change(client, "question", "load").status_code == 200
    versions = version_by_scores(client)
    body = {"model": "question", "input": "who"}
    begun = client.post("/v1/classify", json={**body, "return_state": True}).json()
    counted: Counter[str] = Counter()
    for state in [begun["results"][0]["state"], "nonsense"] * 10:
        counted[versions[scores(classify(client))]] += 1
        client.post("/v1/classify", json={**body, "state": state})
    assert counted == {"2": 10, "3": 10}


def test_streams_of_all_protocols_are_divided_and_then_stay(
    divided: tuple[httpx.Client, Path],
) -> None:
    client, folder = divided
    write(folder, {"2": 1, "3": 1})
    assert change(client, "question", "load").status_code == 200
    versions = version_by_scores(client)
    began: list[str] = []
    for _ in range(2):
        stream = client.post("/v1/streams", json={"model": "question"}).json()["id"]
        for number in (1, 2):
            step = {"step": number, "input": "who what where", "more": True}
            reply = client.post(f"/v1/streams/{stream}/steps", json=step)
            if number == 1:
                began.append(scores(reply))
    assert len(set(began)) == 2

    async def talk() -> Any:
        async with connected(client) as connection:
            frame = {"model": "question", "input": "who what where", "more": False}
            return (await ask(connection, **frame))["scores"]

    assert {versions[json.dumps(run(talk))] for _ in range(2)} == {"2", "3"}
    with kserve_connected(client) as connection:

        def infer(number: int, start: bool) -> str:
            options = {"sequence_id": number, "sequence_start": start}
            reply = connection.infer("question", [text_tensor("who")], **options)
            return str(reply.get_response()["model_version"])

        sequences = {number: infer(number, True) for number in (1, 2)}
        assert set(sequences.values()) == {"2", "3"}
        for _ in range(3):
            assert {number: infer(number, False) for number in sequences} == sequences
        plain = [connection.infer("question", [text_tensor("who")]) for _ in range(4)]
        counted = Counter(reply.get_response()["model_version"] for reply in plain)
        assert counted == {"2": 2, "3": 2}


def test_a_state_goes_to_its_weights_however_requests_are_divided(
    divided: tuple[httpx.Client, Path],
) -> None:
    client, folder = divided
    reply = classify(client, "question@3", return_state=True)
    state = reply.json()["results"][0]["state"]
    expected = scores(classify(client, "question@3", state=state))
    assert {scores(classify(client, state=state)) for _ in range(20)} == {expected}
    write(folder, {"1": 1})
    assert change(client, "question", "load").status_code == 200
    assert scores(classify(client, state=state)) == expected
    assert version_of(client) == "1", "what new requests get"


def test_a_split_is_changed_and_ended_by_a_load(divided: tuple[httpx.Client, Path]) -> None:
    client, folder = divided
    versions = version_by_scores(client)
    write(folder, {"3": 1, "1": 1})
    assert change(client, "question", "load").status_code == 200
    counted = Counter(versions[scores(classify(client))] for _ in range(10))
    assert counted == {"1": 5, "3": 5}
    (folder / "split.json").unlink()
    assert change(client, "question", "load").status_code == 200
    assert {versions[scores(classify(client))] for _ in range(10)} == {"3"}


def test_a_version_of_weight_0_is_there_for_its_id_and_its_states(
    divided: tuple[httpx.Client, Path],
) -> None:
    client, folder = divided
    versions = version_by_scores(client)
    write(folder, {"2": 1, "3": 0})
    assert change(client, "question", "load").status_code == 200
    assert {versions[scores(classify(client))] for _ in range(5)} == {"2"}
    assert version_of(client) == "2"
    reply = classify(client, "question@3", return_state=True)
    assert versions[scores(reply)] == "3"
    state = reply.json()["results"][0]["state"]
    assert scores(classify(client, state=state)) == scores(
        classify(client, "question@3", state=state)
    )


def test_a_version_that_is_unloaded_leaves_its_part_to_the_others(
    divided: tuple[httpx.Client, Path],
) -> None:
    client, _ = divided
    versions = version_by_scores(client)
    assert change(client, "question@2", "unload").status_code == 200
    assert {versions[scores(classify(client))] for _ in range(10)} == {"3"}


@pytest.mark.parametrize(
    ("split", "problem"),
    [
        ({"2": -1}, "greater than or equal to 0"),
        ({"2": 0, "3": 0}, "above 0"),
        ({"02": 1}, "match pattern"),
        ({"newest": 1}, "match pattern"),
        ({"2": 1.5}, "valid integer"),
        ({"2": "1"}, "valid integer"),
        ({"2": 10**9}, "less than or equal"),
        ([2, 3], "valid object|be an object"),
        ({str(number): 1 for number in range(1, 99)}, "at most 64"),
    ],
)
def test_a_split_that_cannot_be_is_refused_by_its_file(
    tmp_path: Path, split: Any, problem: str
) -> None:
    write(tmp_path, split)
    with pytest.raises(SettingsError, match=problem) as caught:
        read_split(tmp_path)
    assert str(tmp_path / "split.json") in str(caught.value)


def test_a_split_that_names_a_version_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "split.json").write_text('{"2": 90, "2": 10}')
    with pytest.raises(SettingsError, match=r"split\.json contains the name '2' twice"):
        read_split(tmp_path)


def test_a_split_among_versions_that_are_not_there_or_too_many_is_refused(
    tmp_path: Path,
) -> None:
    for version in (1, 2, 3):
        save_version(tmp_path, version)
    write(tmp_path, {"1": 1, "7": 1})
    with pytest.raises(SettingsError, match="names version 7"):
        plan_at_start(tmp_path, 4)
    write(tmp_path, {"1": 1, "2": 1})
    with pytest.raises(SettingsError, match="needs 3 versions, over SRUSERVE_MODEL_VERSIONS=2"):
        plan_at_start(tmp_path, 2)
    assert [number for number, _ in plan_at_start(tmp_path, 3).versions] == ["1", "2", "3"]


def test_a_load_with_a_wrong_split_changes_nothing(divided: tuple[httpx.Client, Path]) -> None:
    client, folder = divided
    versions = version_by_scores(client)
    write(folder, {"9": 1})
    assert change(client, "question", "load").status_code == 400
    assert Counter(versions[scores(classify(client))] for _ in range(10)) == {"2": 9, "3": 1}


def test_versions_that_a_model_folder_hides_are_refused(tmp_path: Path) -> None:
    save_version(tmp_path / "poems", 1)
    flat = (tmp_path / "poems" / "1").rename(tmp_path / "flat")
    assert plan_at_start(flat, 4).current == "1"
    (flat / "drafts").mkdir()
    save_version(flat, 2)
    with pytest.raises(SettingsError, match="folders in it such as 2 would not be served"):
        plan_at_start(flat, 4)


def test_a_start_says_which_versions_it_serves_and_leaves_out(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for version in (1, 2, 3):
        save_version(tmp_path / "left-out", version)
    write(tmp_path / "left-out", {"2": 9, "3": 1})
    caplog.set_level("INFO", "sruserve.server")
    left_out = 'sru_model_versions_ended_total{model="left-out",reason="start"}'
    with serve(models=tmp_path, model_folders=(), model_versions=2) as (client, _):
        assert metric(client, left_out) == 1
    assert "serving version 2, 3 of left-out; new requests get 2 (9), 3 (1)" in caplog.messages
    assert "versions 1 of left-out are not served: SRUSERVE_MODEL_VERSIONS=2" in caplog.messages
