"""The files of a model may be written over while it is served: its answers stay."""

import os
import shutil
from pathlib import Path

import pytest

from tests.server.conftest import LABELS, WORDS, Serve, words_vocabulary
from tests.support import save_random_model

TEXT = {"input": "How far is it from Denver to Aspen?"}


@pytest.mark.parametrize("change", ["cp", "truncate"])
def test_answers_stay_when_the_weights_are_written_over_or_cut(
    serve: Serve, tmp_path: Path, change: str
) -> None:
    for seed, name in enumerate(("m", "other")):
        save_random_model(
            tmp_path / name, "classify", labels=LABELS, vocabulary=words_vocabulary(),
            vocab_size=len(WORDS), seed=seed,
        )  # fmt: skip
    weights = tmp_path / "m" / "model.safetensors"
    with serve(models=tmp_path, model_folders=(tmp_path / "m",)) as (client, _):
        before = client.post("/v1/classify", json=TEXT).json()["results"]
        if change == "cp":
            shutil.copyfile(tmp_path / "other" / "model.safetensors", weights)
            shutil.copyfile(tmp_path / "other" / "tokenizer.json", tmp_path / "m/tokenizer.json")
        else:
            os.truncate(weights, 0)
            os.truncate(tmp_path / "m" / "tokenizer.json", 0)
        assert client.post("/v1/classify", json=TEXT).json()["results"] == before
