"""Translations over KServe v2, in Python and by `sruserve run`: those of `/v1/translate`."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

import sruserve
from sruserve.model.translation.folder import TranslationModel
from sruserve.server.repository.device import is_translator, readable
from tests import preloaded
from tests.server.kserve.conftest import grpc_address
from tests.server.kserve.grpc_inputs import texts
from tests.server.kserve.support import connected
from tests.server.translation.asking import ask, sources, text
from tests.server.translation.conftest import Running

TEXTS = [text(each) for each in sources(3)]


@pytest.mark.parametrize("kind", [triton_http, triton_grpc])
def test_kserve_answers_with_the_best_translation_of_each_text(running: Running, kind: Any) -> None:
    client, application = running
    expected = ask(client, "gru-dot", input=TEXTS, beam_size=3, max_tokens=9, scores=True)
    inputs = [texts(kind, "text_input", *TEXTS)]
    options = {"beam_size": 3, "max_tokens": 9}
    if kind is triton_http:
        with connected(client) as connection:
            reply = connection.infer("gru-dot", inputs, parameters=options)
    else:
        with triton_grpc.InferenceServerClient(grpc_address(application)) as connection:
            reply = connection.infer("gru-dot", inputs, parameters=options)
    written = [one.decode() for (one,) in reply.as_numpy("text_output")]
    assert written == [each["text"] for each in expected]
    reasons = [one.decode() for (one,) in reply.as_numpy("finish_reason")]
    assert reasons == [each["finish_reason"] for each in expected]
    np.testing.assert_array_equal(
        reply.as_numpy("score")[:, 0], [each["score"] for each in expected]
    )


def test_a_translation_system_is_listed_and_described(running: Running) -> None:
    client, _ = running
    models = {each["id"]: each for each in client.get("/v1/models").json()["data"]}
    assert models["gru-dot"]["task"] == "translate"
    assert models["gru-dot"]["streams"] is False
    assert models["gru-dot"]["state_bytes"] == 0
    config = client.get("/v2/models/gru-dot/config").json()
    assert config["parameters"]["task"]["string_value"] == "translate"
    assert "sequence_batching" not in config
    assert client.get("/v2/models/gru-dot/ready").status_code == 200


def test_the_api_for_python_translates(
    running: Running, systems: dict[str, TranslationModel]
) -> None:
    options: dict[str, Any] = {"beam_size": 4, "n_best": 2, "max_tokens": 9}
    expected = ask(running[0], "gru-dot", input=TEXTS, attention=True, scores=True, **options)
    with sruserve.load(systems["gru-dot"].path) as model:
        assert (model.task, model.state_bytes, model.family) == ("translate", 0, "recurrent")
        results = model.translate(TEXTS, attention=True, **options)
        one = asyncio.run(model.aio.translate(TEXTS[0], attention=True, **options))
        with pytest.raises(sruserve.ServeError, match=r"call model\.translate"):
            model.classify("a4")
        with pytest.raises(sruserve.ServeError, match="translates whole texts"):
            model.stream()
        with pytest.raises(sruserve.ServeError, match="leave 'stream' out"):
            model.translate("a4", stream=True)  # type: ignore[call-overload]
        with pytest.raises(sruserve.ServeError, match="reads no features"):
            model.translate([[1.0, 2.0]])
    assert one == results[0]
    for result, reply in zip(results, expected, strict=True):
        for each, other in zip(
            [result, *result.alternatives], [reply, *reply["alternatives"]], strict=True
        ):
            assert (each.text, each.score) == (other["text"], other["score"])
            assert each.log_probability == other["log_probability"]
            assert each.alignment is not None
            assert each.alignment.weights == other["alignment"]["weights"]


def test_lines_of_a_file_are_translated(
    running: Running, systems: dict[str, TranslationModel], tmp_path: Path
) -> None:
    source, output = tmp_path / "texts.txt", tmp_path / "out.jsonl"
    source.write_text("".join(f"{each}\n" for each in [*TEXTS, " "]))
    command = ("-m", "sruserve", "run", str(systems["gru-dot"].path), str(source))
    done = preloaded.run(*command, "--output", str(output), "--max-tokens", "9")
    assert output.exists(), done.stderr
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    expected = ask(running[0], "gru-dot", input=TEXTS, max_tokens=9)
    assert [each["text"] for each in lines] == [each["text"] for each in expected]


def test_a_folder_that_could_not_be_served_as_asked_is_refused(
    systems: dict[str, TranslationModel], tmp_path: Path
) -> None:
    path = systems["gru-dot"].path
    with pytest.raises(sruserve.ServeError, match="in float32 alone: set SRUSERVE_DTYPE"):
        sruserve.load(path, dtype="bfloat16")
    copy = Path(shutil.copytree(path, tmp_path / "preset"))
    (copy / "presets.json").write_text('{"greeting": {"text": "a4"}}')
    with pytest.raises(sruserve.ServeError, match="no states for presets"):
        sruserve.load(copy)


def test_a_dtype_of_all_models_leaves_a_translation_system_in_float32(
    systems: dict[str, TranslationModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = systems["gru-dot"].path
    monkeypatch.setenv("SRUSERVE_DTYPE", "bfloat16")
    with sruserve.load(path) as model:
        assert model.dtype == "float32"
    monkeypatch.setenv("SRUSERVE_DTYPE", '{"gru-dot": "bfloat16", "other": "bfloat16"}')
    with pytest.raises(sruserve.ServeError, match="set SRUSERVE_DTYPE to float32 for it"):
        sruserve.load(path)


def test_a_gpu_is_checked_for_other_models_alone(
    systems: dict[str, TranslationModel], folders: Path, tmp_path: Path
) -> None:
    paths = [systems["gru-dot"].path, folders / "question", tmp_path]
    assert [is_translator(path) for path in paths] == [True, False, False]
    assert readable(paths) == paths[:2]
