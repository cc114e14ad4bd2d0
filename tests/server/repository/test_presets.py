"""Presets: to begin from one is to have sent its prefix, and costs nothing."""

import asyncio
import json
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from sruserve.model.folder import load_model
from sruserve.model.heads.config import HeadConfig
from sruserve.server.app import Application
from sruserve.server.errors import PresetNotFound
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.repository.document_presets import DocumentEntry
from sruserve.server.repository.preset_file import PresetFile, read_presets
from sruserve.server.repository.presets import Prefix, compute_presets
from sruserve.server.repository.served_model import with_states
from sruserve.server.settings import SettingsError, load_settings
from tests.server.conftest import CHARACTERS, LABELS, TAGS, TEXT, WORDS, Serve, words_vocabulary
from tests.support import save_random_model

CUTS = (1, 4, 5, 13, len(TEXT) - 1, len(TEXT))
STEPS = [[0.1 * i, -0.2 * i] for i in range(9)]
SPELLED: dict[str, Any] = {"vocabulary": words_vocabulary(), "vocab_size": len(WORDS)}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each task, all with presets of the beginnings of one text, or of one input."""
    parent = tmp_path_factory.mktemp("presets")
    save_random_model(parent / "characters", vocabulary=CHARACTERS)
    save_random_model(parent / "words", **SPELLED)
    save_random_model(parent / "question", "classify", labels=LABELS, **SPELLED)
    save_random_model(parent / "tagger", "tag", labels=TAGS, **SPELLED)
    save_random_model(parent / "reader", "encode", **SPELLED)
    texts = json.dumps({str(cut): TEXT[:cut] for cut in CUTS})
    for folder in parent.iterdir():
        (folder / "presets.json").write_text(texts)
    save_random_model(parent / "sensor", "encode", input_size=2)
    write(parent / "sensor", {str(cut): {"features": STEPS[:cut]} for cut in (1, 8)})
    save_random_model(parent / "ids", vocab_size=50)
    write(parent / "ids", {"few": {"ids": [1, 2, 3]}})
    return parent


def write(folder: Path, presets: Any) -> None:
    (folder / "presets.json").write_text(json.dumps(presets))


@pytest.fixture(scope="module")
def client(serve: Serve, models: Path) -> Iterator[httpx.Client]:
    with serve(models=models, model_folders=()) as (client, _):
        yield client


def ask(client: httpx.Client, route: str, model: str, **body: Any) -> dict[str, Any]:
    reply = client.post(f"/v1/{route}", json={"model": model, **body})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("model", ["characters", "words"])
@pytest.mark.parametrize("sampling", [{}, {"repetition_penalty": 1.3}, {"temperature": 0}])
def test_a_completion_continues_from_a_preset_as_from_its_text(
    client: httpx.Client, model: str, cut: int, sampling: dict[str, Any]
) -> None:
    body = {"max_tokens": 12, "seed": 5, "logprobs": 2, **sampling}
    whole = ask(client, "completions", model, prompt=TEXT, **body)
    rest = ask(client, "completions", model, preset=str(cut), prompt=TEXT[cut:], **body)
    assert rest["choices"] == whole["choices"]
    read = rest["usage"]["prompt_tokens"]
    if model == "characters":
        assert read == len(TEXT) - cut
    else:
        assert read < whole["usage"]["prompt_tokens"] or cut == 1


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    ("route", "model", "field"),
    [
        ("classify", "question", "scores"),
        ("tag", "tagger", "tokens"),
        ("encode", "reader", "outputs"),
    ],
)
def test_other_tasks_continue_from_a_preset_as_from_its_text(
    client: httpx.Client, route: str, model: str, field: str, cut: int
) -> None:
    whole = ask(client, route, model, input=TEXT)
    rest = ask(client, route, model, preset=str(cut), input=TEXT[cut:])
    expected, result = (reply["results"][0][field] for reply in (whole, rest))
    if route == "tag":
        expected, result = (
            [(t["label"], t["score"]) for t in tokens] for tokens in (expected, result)
        )
    assert result
    assert result == (expected if route == "classify" else expected[-len(result) :])
    assert rest["usage"]["steps"] <= whole["usage"]["steps"]


@pytest.mark.parametrize("cut", [1, 8])
def test_features_may_be_a_preset(client: httpx.Client, cut: int) -> None:
    whole = ask(client, "encode", "sensor", features=STEPS)["results"][0]["outputs"]
    rest = ask(client, "encode", "sensor", features=STEPS[cut:], preset=str(cut))
    assert rest["results"][0]["outputs"] == whole[cut:]
    assert rest["usage"]["steps"] == len(STEPS) - cut


def test_ids_may_be_a_preset(client: httpx.Client) -> None:
    whole = ask(client, "completions", "ids", prompt=[1, 2, 3, 4], seed=1)
    rest = ask(client, "completions", "ids", prompt=[4], preset="few", seed=1)
    assert rest["choices"] == whole["choices"]


def test_two_requests_of_one_preset_are_not_the_same_random_text(client: httpx.Client) -> None:
    one, two = (
        ask(client, "completions", "characters", preset="5", max_tokens=40) for _ in range(2)
    )
    assert one["choices"][0]["text"] != two["choices"][0]["text"]


def test_presets_are_listed_and_an_unknown_one_is_reported(client: httpx.Client) -> None:
    assert client.get("/v1/models/words").json()["presets"] == [str(cut) for cut in CUTS]
    body = {"model": "words", "prompt": "who", "preset": "absent"}
    reply = client.post("/v1/completions", json=body)
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "preset_not_found"


def test_an_error_names_only_some_of_many_presets(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = with_states(application.lifecycle.catalogue["words"])
    monkeypatch.setattr(served, "presets", {f"{n:0100}": None for n in range(1024)})
    with pytest.raises(PresetNotFound) as caught:
        served.initial_state(None, "absent")
    assert f"{19:0100}, …" in caught.value.message
    assert f"{20:0100}" not in caught.value.message


@pytest.mark.parametrize(
    ("options", "presets", "expected_text"),
    [
        ({"bidirectional": True, **SPELLED}, {"a": "who"}, "preset 'a': m cannot continue"),
        (SPELLED, {"a": "who", "b": ""}, "preset 'b': 'text' has nothing"),
        (SPELLED, {"a": {"ids": [99]}}, "preset 'a': 'ids' has the token id 99"),
        (SPELLED, {"a": {"features": [[1.0]]}}, "preset 'a': m reads text"),
        (SPELLED, {"a": {"text": "who", "ids": [1]}}, "one of 'text', 'ids' and 'features'"),
        (SPELLED, {"": "who"}, "presets.json should be a JSON object of texts"),
        (SPELLED, ["who"], "presets.json should be a JSON object of texts"),
        (SPELLED, {str(i): "who" for i in range(1025)}, "has 1,025 presets; the limit is 1,024"),
        (SPELLED, {"x" * 5000: "who"}, "presets.json should be .{,300}$"),
        (SPELLED, {"a": {"text": "who", "b": 1, "c": 1, "d": 1}}, "may have text, ids, features,"),
        (SPELLED, {"\x1b[2J": 5}, r"\\x1b\[2J"),
        ({"vocab_size": 9}, {"a": "who"}, "preset 'a': m has no vocabulary"),
        ({"input_size": 2}, {"a": {"features": [[1.0]]}}, "must have 2 numbers"),
    ],
)
def test_a_preset_that_cannot_be_stops_the_start(
    tmp_path: Path, options: dict[str, Any], presets: Any, expected_text: str
) -> None:
    write(save_random_model(tmp_path / "m", "classify", labels=LABELS, **options), presets)
    starting = Lifecycle(load_settings(model_folders=(tmp_path / "m",)))
    before = set(threading.enumerate())
    with pytest.raises(SettingsError, match=expected_text) as caught:
        asyncio.run(starting.start())
    assert str(tmp_path / "m" / "presets.json") in str(caught.value)
    started = set(threading.enumerate()) - before
    assert not [thread for thread in started if thread.name == "engine m"]


@pytest.mark.parametrize(
    "content", ['{"a": "who", "a": "what"}', '{"a": {"text": "who", "\\u0074ext": "what"}}']
)
def test_presets_that_name_something_twice_are_refused(tmp_path: Path, content: str) -> None:
    folder = save_random_model(tmp_path / "m", "classify", labels=LABELS, **SPELLED)
    (folder / "presets.json").write_text(content)
    starting = Lifecycle(load_settings(model_folders=(folder,)))
    with pytest.raises(SettingsError, match=r"presets\.json contains the name '(a|text)' twice"):
        asyncio.run(starting.start())


def test_a_model_with_a_crf_has_no_presets(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    save_random_model(folder, "tag", labels=TAGS, head=HeadConfig(crf=True), **SPELLED)
    write(folder, {"first": TEXT})
    starting = Lifecycle(load_settings(model_folders=(folder,)))
    with pytest.raises(SettingsError, match="m has a CRF, whose labels of a preset's text"):
        asyncio.run(starting.start())


def test_a_large_file_of_presets_is_not_read(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path / "m", "classify", labels=LABELS, **SPELLED)
    (folder / "presets.json").write_bytes(b"{}".ljust((16 << 20) + 1))
    starting = Lifecycle(load_settings(model_folders=(folder,)))
    with pytest.raises(SettingsError, match=r"presets\.json: it has .* the limit is 16,777,216"):
        asyncio.run(starting.start())


@pytest.mark.parametrize(
    "entries",
    [TypeAdapter(PresetFile[Prefix]), TypeAdapter(PresetFile[DocumentEntry])],
    ids=["prefixes", "documents"],
)
@pytest.mark.parametrize(
    "wrong",
    [
        {str(i): i for i in range(40_000)},
        {"a": {str(i): i for i in range(40_000)}},
        {"a": {"ids": ["x"] * 40_000, "words": [0] * 40_000}},
        {"a": {"features": [["x"] * 40_000], "pos": [0] * 40_000}},
        {"a": {"features": [["x"]] * 40_000, "lemmas": [0] * 40_000}},
    ],
    ids=["presets", "fields", "ids", "numbers", "rows"],
)
def test_a_file_of_many_errors_takes_little_memory_to_refuse(
    tmp_path: Path, wrong: Any, entries: TypeAdapter[Any]
) -> None:
    write(tmp_path, wrong)
    tracemalloc.start()
    try:
        with pytest.raises(SettingsError):
            read_presets(tmp_path / "presets.json", entries)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


def test_presets_whose_states_are_large_together_are_refused(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path / "m", "classify", labels=LABELS, **SPELLED)
    nbytes = load_model(folder).network.layout.nbytes
    write(folder, {str(i): "who" for i in range(3)})

    async def run() -> None:
        lifecycle = Lifecycle(load_settings(model_folders=(folder,)))
        await lifecycle.start()
        try:
            served = lifecycle.catalogue.with_states("m")
            assert len(await asyncio.to_thread(compute_presets, served, 3 * nbytes)) == 3
            with pytest.raises(SettingsError, match=f"3 presets need {3 * nbytes:,} bytes"):
                await asyncio.to_thread(compute_presets, served, 3 * nbytes - 1)
        finally:
            await lifecycle.stop()

    asyncio.run(run())


async def started_and_stopped(lifecycle: Lifecycle) -> None:
    await lifecycle.start()
    await lifecycle.stop()


def test_presets_are_no_part_of_the_digest_and_outlive_an_import(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path / "m", **SPELLED)
    digest = load_model(folder).digest
    write(folder, {"a": "who"})
    assert load_model(folder).digest == digest
    save_random_model(folder, **SPELLED, seed=1)
    assert json.loads((folder / "presets.json").read_text()) == {"a": "who"}
