"""Model folders: what is saved is loaded, and what was altered is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sruserve.model.errors import CheckpointError, ConfigError, FolderError, ModelError
from sruserve.model.folder import load_model, save_model
from tests.support import PRINTABLE, random_tensors, save_random_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_random_model(tmp_path / "lm", vocabulary=PRINTABLE)


def test_a_model_is_loaded_as_it_was_saved(folder: Path) -> None:
    model = load_model(folder)
    assert (model.name, model.dtype, model.config.task) == ("lm", "float32", "generate")
    assert len(model.digest) == 64
    assert model.network.layout.nbytes == 2 * 24 * 4
    assert model.codec is not None
    assert load_model(folder, "bfloat16").dtype == "bfloat16"


def test_the_weights_may_be_read_by_whoever_may_read_the_config(folder: Path) -> None:
    modes = {(folder / name).stat().st_mode for name in ("config.json", "model.safetensors")}
    assert len(modes) == 1


def test_the_digest_is_the_same_for_the_same_model_and_no_other(tmp_path: Path) -> None:
    def digest(name: str, **changes: object) -> str:
        return load_model(save_random_model(tmp_path / name, **changes)).digest  # type: ignore[arg-type]

    first = digest("a", vocabulary=PRINTABLE)
    assert digest("b", vocabulary=PRINTABLE) == first
    others = {
        digest("c", vocabulary=PRINTABLE, seed=1),
        digest("d", vocabulary=PRINTABLE, use_tanh=True),
        digest("e", vocabulary=PRINTABLE[::-1]),
        digest("f", vocab_size=len(PRINTABLE)),
    }
    assert first not in others
    assert len(others) == 4


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "bytes.json"])
def test_a_folder_that_was_changed_after_its_import_is_refused(folder: Path, file: str) -> None:
    path = folder / file
    if file == "config.json":
        config = json.loads(path.read_text())
        config["rnn"]["use_tanh"] = True
        path.write_text(json.dumps(config))
    elif file == "bytes.json":
        path.write_text(json.dumps(PRINTABLE[::-1]))
    else:
        tensors = load_file(path)
        tensors["output.bias"] += 1
        save_file(tensors, path, {"digest": load_model(folder).digest})
    with pytest.raises(FolderError, match="changed after its import"):
        load_model(folder)


def test_labels_may_be_renamed(tmp_path: Path) -> None:
    path = save_random_model(tmp_path / "c", "classify", vocab_size=9, labels=("a", "b"))
    config = json.loads((path / "config.json").read_text())
    config["id2label"] = {"0": "good", "1": "bad"}
    (path / "config.json").write_text(json.dumps(config))
    assert load_model(path).labels == ("good", "bad")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "dance"}, "task"),
        ({"rnn": {"input_size": 0, "hidden_size": 4}}, "rnn.input_size"),
        ({"surprise": 1}, "surprise"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)
def test_a_config_that_describes_no_network_is_refused_with_the_field(
    folder: Path, change: dict[str, object], message: str
) -> None:
    config = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=message):
        load_model(folder)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_folder_without_its_files_is_refused(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(ModelError, match=missing):
        load_model(folder)


def test_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="no folder"):
        load_model(tmp_path / "nothing")


def test_weights_that_are_cut_off_are_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_model(folder)


def test_every_tensor_that_does_not_fit_is_named(folder: Path, tmp_path: Path) -> None:
    config = load_model(folder).config
    tensors = random_tensors(config)
    del tensors["output.bias"]
    tensors["extra"] = torch.zeros(1)
    tensors["embedding.weight"] = torch.zeros(3, 4)
    tensors["rnn.rnn_lst.0.bias"] = torch.zeros(48, dtype=torch.int64)
    with pytest.raises(CheckpointError) as caught:
        save_model(tmp_path / "other", config, tensors)
    for part in (
        "output.bias is missing",
        "extra is not expected",
        "embedding.weight is [3, 4], not [95, 16]",
        "rnn.rnn_lst.0.bias holds torch.int64",
    ):
        assert part in str(caught.value)
    assert not (tmp_path / "other").exists()
