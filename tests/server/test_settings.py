"""Settings: documented, checked, and explained when they are wrong."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from sruserve.model.bundled import BUNDLED
from sruserve.server.repository.discovery import find_models, loadable_models
from sruserve.server.repository.loader import engine_limits
from sruserve.server.setting_table import Row, setting_rows
from sruserve.server.settings import (
    Settings,
    SettingsError,
    dtypes_by_model,
    key_ring,
    load_settings,
    state_keys,
    variable_name,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "settings.md"


@pytest.mark.parametrize("row", list(setting_rows()), ids=lambda row: row.variable)
def test_every_setting_is_documented_with_its_default_bounds_and_description(row: Row) -> None:
    default = f"`{row.default}`" if row.default else ""
    line = f"| `{row.variable}` | {default} | {row.allowed} | {row.meaning} |"
    assert line in DOCUMENT.read_text().splitlines(), f"docs/settings.md needs this row:\n{line}"


@pytest.mark.parametrize("name", list(Settings.model_fields))
def test_the_documented_bounds_are_the_bounds_in_force(name: str) -> None:
    (allowed,) = [r.allowed for r in setting_rows() if r.variable == variable_name(name)]
    if match := re.fullmatch(r"(?:(\d+) to (\d+)|from (\d+)|above (\d+))", allowed):
        low, high, least, above = (int(n) if n else None for n in match.groups())
        refused = {None if low is None else low - 1, None if high is None else high + 1, above}
        refused |= {None if least is None else least - 1}
        for value in refused - {None}:
            with pytest.raises(SettingsError, match=variable_name(name)):
                load_settings(**{name: value})
        accepted: set[float | None] = {low, least, None if above is None else above + 0.001}
        accepted |= {high} if name != "threads" else set()  # the machine's cores bound it too
        for good in accepted - {None}:
            assert getattr(load_settings(**{name: good}), name) == good
    else:
        assert Settings.model_fields[name].annotation not in (int, float), "it has no bounds"


def test_every_documented_setting_exists() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `SRUSERVE_")]
    assert len(rows) == len(Settings.model_fields)


def test_settings_are_taken_from_the_environment_and_arguments_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SRUSERVE_PORT", "9000")
    monkeypatch.setenv("SRUSERVE_MAX_BATCH_TOKENS", "128")
    monkeypatch.setenv("SRUSERVE_DTYPE", "")
    settings = load_settings(port=9001)
    assert (settings.port, settings.max_batch_tokens, settings.dtype) == (9001, 128, None)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("SRUSERVE_PORT", "http", "SRUSERVE_PORT=http: should be a whole number from 0 to 65535"),
        ("SRUSERVE_PORT", "70000", "SRUSERVE_PORT=70000: should be a whole number from 0 to 65535"),
        ("SRUSERVE_GRPC_PORT", "on", "should be a whole number from 0 to 65535, or off"),
        ("SRUSERVE_MAX_BATCH_TOKENS", "0", "should be a whole number from 1"),
        ("SRUSERVE_RECEIVE_GRACE_SECONDS", "0", "should be a number above 0"),
        ("SRUSERVE_RECEIVE_GRACE_SECONDS", "inf", "=inf: should be a finite number"),
        ("SRUSERVE_RECEIVE_GRACE_SECONDS", "-Infinity", "should be a finite number"),
        ("SRUSERVE_RECEIVE_GRACE_SECONDS", "nan", "should be a finite number"),
        ("SRUSERVE_RECEIVE_GRACE_SECONDS", "1e400", "should be a finite number"),
        ("SRUSERVE_SSE_PING_SECONDS", "inf", "should be a finite number"),
        ("SRUSERVE_SSE_PING_SECONDS", "1\uff15", "should be a number above 0"),
        ("SRUSERVE_PORT", "\uff18\uff10\uff10\uff10", "should be a whole number from 0 to 65535"),
        ("SRUSERVE_GRPC_PORT", "٨٠٠١", "should be a whole number from 0 to 65535, or off"),
        ("SRUSERVE_WORKERS", "\uff12", "should be a whole number from 1 to 256"),
        ("SRUSERVE_DEVICE", "cuda:\uff11", "should be auto, cpu, cuda or cuda:N"),
        ("SRUSERVE_THREADS", "²", "should be a whole number from 0 to 1024"),
        ("SRUSERVE_ACCESS_LOG", "perhaps", "should be true or false"),
        ("SRUSERVE_LOG_LEVEL", "all", "should be debug or info or warning or error"),
        ("SRUSERVE_DTYPE", "int8", "SRUSERVE_DTYPE=int8: should be float32 or bfloat16 or float16"),
        ("SRUSERVE_DTYPE", '{"a": "int8"}', "or a JSON object of these by model name"),
        ("SRUSERVE_DTYPE", '{"a": ', "or a JSON object of these by model name"),
        ("SRUSERVE_DTYPE", '["float32"]', "or a JSON object of these by model name"),
        ("SRUSERVE_DTYPE", "3", "or a JSON object of these by model name"),
        ("SRUSERVE_DEVICE", "gpu", "SRUSERVE_DEVICE=gpu: should be auto, cpu, cuda or cuda:N"),
        ("SRUSERVE_DEVICE", "cuda:-1", "should be auto, cpu, cuda or cuda:N"),
        ("SRUSERVE_FAST", "very", "SRUSERVE_FAST=very"),
        ("SRUSERVE_GPU_MEMORY_BYTES", "-1", "should be a whole number from 0"),
        ("SRUSERVE_STATE_HOST_BYTES", "-1", "should be a whole number from 0"),
        ("SRUSERVE_WORKER", "2", "did you mean SRUSERVE_WORKERS?"),
        ("SRUSERVE_XYZZY", "2", "is not a setting of sruserve; `sruserve settings` lists all"),
        ("SRUSERVE_STATE_KEYS", "c2hvcnQ=", "32 bytes"),
        ("SRUSERVE_STATE_KEYS", "not base64 at all", "openssl rand"),
        ("SRUSERVE_STATE_KEYS", "A" * 20 + "!*" + "A" * 23 + "=", "openssl rand"),
        ("SRUSERVE_MODEL_FOLDERS", "not json", "SRUSERVE_MODEL_FOLDERS"),
        ("SRUSERVE_MODEL_FOLDERS", "[1", "SRUSERVE_MODEL_FOLDERS"),
        ("SRUSERVE_MODEL_FOLDERS", "[" * 5000, "SRUSERVE_MODEL_FOLDERS: should be JSON of few"),
        ("SRUSERVE_DTYPE", '{"a":' * 5000, "SRUSERVE_DTYPE: should be JSON of few"),
        ("SRUSERVE_MODEL_FOLDERS", '"x"', "SRUSERVE_MODEL_FOLDERS"),
        ("SRUSERVE_STATE_TTL_SECONDS", str(10**10), "SRUSERVE_STATE_TTL_SECONDS"),
        ("SRUSERVE_FLUSH_MS", "60001", "SRUSERVE_FLUSH_MS"),
        ("SRUSERVE_FLUSH_MAX_MS", "60001", "SRUSERVE_FLUSH_MAX_MS"),
        (
            "SRUSERVE_QUEUE_TIMEOUT_MS",
            "9" * 400,
            f"={'9' * 200}…: should be a whole number from 0 to 86400000",
        ),
        ("SRUSERVE_THREADS", "1025", "SRUSERVE_THREADS"),
        ("SRUSERVE_CORS_ORIGINS", "*", "did you mean SRUSERVE_ALLOWED_ORIGINS?"),
        ("SRUSERVE_ALLOWED_ORIGINS", "app.example.com", "such as https://app.example.com"),
        ("SRUSERVE_ALLOWED_ORIGINS", "https://a.example/page", "'https://a.example/page' is not"),
        ("SRUSERVE_ALLOWED_ORIGINS", "https://*.example.com", "is not an origin"),
        ("SRUSERVE_ALLOWED_ORIGINS", "https://bücher.example", "is not an origin"),
        ("SRUSERVE_ALLOWED_ORIGINS", "https://a.example https://b.example", "is not an origin"),
        ("SRUSERVE_BURST", "1000000", "SRUSERVE_BURST"),
        ("SRUSERVE_WORKERS", "1000000", "SRUSERVE_WORKERS"),
        ("SRUSERVE_GRPC_STREAMS", str(2**63 - 1), "SRUSERVE_GRPC_STREAMS"),
        ("SRUSERVE_KEEP_ALIVE_SECONDS", "3000000", "SRUSERVE_KEEP_ALIVE_SECONDS"),
    ],
)
def test_a_wrong_setting_is_named_and_explained(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert message in str(caught.value)
    if variable == "SRUSERVE_STATE_KEYS":
        assert value not in str(caught.value)


def test_the_operators_keys_win_and_unset_ones_are_random() -> None:
    value = SecretStr("ab" * 32)
    assert state_keys(load_settings(state_keys=value)) == value
    one, two = (key_ring(load_settings()).new_seal().key_id for _ in "ab")
    assert one != two


def test_keys_are_never_shown() -> None:
    settings = load_settings(state_keys=SecretStr("ab" * 32))
    assert "abab" not in repr(settings) + str(settings) + settings.model_dump_json()


def test_given_folders_win_over_the_folder_of_models(folders: Path) -> None:
    every = find_models(load_settings(models=folders))
    assert [path.name for path in every] == sorted(path.name for path in folders.iterdir())
    chosen = find_models(load_settings(models=folders, model_folders=(folders / "question",)))
    assert [path.name for path in chosen] == ["question"]


def test_a_bundled_model_is_served_by_its_name_unless_a_folder_of_models_has_it(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(model_folders=(Path("sentiment"), folders / "question"))
    assert find_models(settings) == (BUNDLED / "sentiment", (folders / "question").resolve())
    assert loadable_models(settings).keys() == {"sentiment", "question"}
    shutil.copytree(folders / "question", tmp_path / "sentiment")
    assert find_models(settings)[0] == (tmp_path / "sentiment").resolve()


def test_missing_empty_and_ambiguous_folders_are_explained(folders: Path, tmp_path: Path) -> None:
    twin = tmp_path / "twin" / "question"
    twin.mkdir(parents=True)
    (twin / "config.json").write_text("{}")
    for settings, message in (
        (load_settings(models=tmp_path / "absent"), "not a folder"),
        (load_settings(models=tmp_path), "no model folder"),
        (
            load_settings(model_folders=(tmp_path,)),
            "neither config.json nor model.onnx, and no numeric",
        ),
        (
            load_settings(model_folders=(tmp_path / "absent",)),
            "there is no folder .*/absent; name .* or a bundled model: entities, numbers, question",
        ),
        (load_settings(model_folders=(twin / "config.json",)), "config.json is a file"),
        (
            load_settings(model_folders=(twin.parent,)),
            "holds model folders: question; to serve .* SRUSERVE_MODELS=.*/twin sruserve serve",
        ),
        (load_settings(models=twin), "is itself a model folder: .* sruserve serve .*/question"),
        (load_settings(model_folders=(folders / "question", twin)), "rename one"),
    ):
        with pytest.raises(SettingsError, match=message):
            find_models(settings)


UNSAFE_NAMES = [b"x\xffy", b"one\ntwo", b"tab\t", b"\xc2\x85", b"\xe2\x80\xa8", b"\x1b[1m"]
UNSAFE_NAMES += [
    character.encode() for character in "\u200b\u202e\u2066\ufeff"
]  # nobody sees these


@pytest.mark.parametrize("name", UNSAFE_NAMES, ids=repr)
def test_a_folder_whose_name_is_no_readable_id_is_refused(
    folders: Path, tmp_path: Path, name: bytes
) -> None:
    folder = tmp_path / os.fsdecode(name)
    shutil.copytree(folders / "question", folder)
    for settings in (load_settings(models=tmp_path), load_settings(model_folders=(folder,))):
        with pytest.raises(SettingsError, match=r"cannot be served: its name, .* rename") as error:
            find_models(settings)
        assert str(error.value).isprintable()
    assert loadable_models(load_settings(models=tmp_path)) == {}


def test_a_folder_may_have_a_name_in_any_script(folders: Path, tmp_path: Path) -> None:
    for name in ("modèle", "模型 2", "🧑\u200d🔬"):
        shutil.copytree(folders / "question", tmp_path / name)
    assert len(find_models(load_settings(models=tmp_path))) == 3
    assert len(loadable_models(load_settings(models=tmp_path))) == 3


@pytest.mark.parametrize("path", ["\0", "a" * 5000, "\ud800"], ids=["null", "long", "surrogate"])
@pytest.mark.parametrize("name", ["models", "model_folders"])
def test_a_path_that_no_file_can_have_is_reported_with_its_setting(name: str, path: str) -> None:
    value: Any = Path(path) if name == "models" else (Path(path),)
    with pytest.raises(SettingsError) as caught:
        find_models(load_settings(**{name: value}))
    assert str(caught.value).startswith(variable_name(name))
    assert len(str(caught.value)) < 300


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sruserve.server.settings.usable_cores", lambda *_: 8)
    assert engine_limits(load_settings()).threads == 8
    assert engine_limits(load_settings(workers=3)).threads == 2
    assert engine_limits(load_settings(workers=20)).threads == 1
    assert engine_limits(load_settings(workers=3, threads=5)).threads == 5


def test_a_dtype_holds_for_all_models_or_for_the_named_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert dtypes_by_model(load_settings(), "ab") == {"a": None, "b": None}
    monkeypatch.setenv("SRUSERVE_DTYPE", "bfloat16")
    assert dtypes_by_model(load_settings(), "ab") == {"a": "bfloat16", "b": "bfloat16"}
    monkeypatch.setenv("SRUSERVE_DTYPE", '{"b": "float16"}')
    assert dtypes_by_model(load_settings(), "ab") == {"a": None, "b": "float16"}
    with pytest.raises(SettingsError, match="SRUSERVE_DTYPE names b; served are a, c"):
        dtypes_by_model(load_settings(), "ac")


def test_the_engine_gets_the_memory_for_states() -> None:
    limits = engine_limits(load_settings(state_pool_bytes=5, state_host_bytes=7))
    assert (limits.state_pool_bytes, limits.state_host_bytes) == (5, 7)


def test_a_setting_may_have_its_former_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SRUSERVE_MAX_TOKEN_BYTES", "")
    assert load_settings().max_state_token_bytes == 1 << 20
    monkeypatch.setenv("SRUSERVE_MAX_TOKEN_BYTES", "1000")
    assert load_settings().max_state_token_bytes == 1000
    assert load_settings(max_state_token_bytes=7).max_state_token_bytes == 7
    monkeypatch.setenv("SRUSERVE_MAX_STATE_TOKEN_BYTES", "2000")
    with pytest.raises(SettingsError, match="former name of SRUSERVE_MAX_STATE_TOKEN_BYTES"):
        load_settings()


def test_an_empty_variable_is_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SRUSERVE_MODELS", "")
    monkeypatch.setenv("SRUSERVE_PORT", "")
    settings = load_settings()
    assert settings.models is None
    assert settings.port == 8000


def test_more_threads_than_the_cores_can_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert load_settings(threads=8).threads == 8
    with pytest.raises(SettingsError, match="SRUSERVE_THREADS=9: should be at most 8"):
        load_settings(threads=9)
