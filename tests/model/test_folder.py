"""Model folders: a saved folder loads again, and a changed one is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from sruserve.model.cells.sru import SRUConfig
from sruserve.model.errors import (
    CheckpointError,
    ConfigError,
    DTypeError,
    FolderError,
    ModelError,
)
from sruserve.model.folder import compute_dtype, load_model, save_model
from sruserve.model.folder_files import model_digest
from sruserve.model.heads.config import HeadConfig
from sruserve.model.inspect import facts
from sruserve.model.names import Task
from tests.support import PRINTABLE, random_config, random_tensors, save_random_model


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


def test_float16_is_for_gpus_and_the_cpu_says_so(folder: Path) -> None:
    with pytest.raises(DTypeError, match="runs on a GPU only: set the dtype to bfloat16"):
        load_model(folder, "float16")
    config = load_model(folder).config
    assert compute_dtype(config, "float16", torch.device("cuda")) == torch.float16
    assert compute_dtype(config, None, torch.device("cuda")) == torch.float32


def test_a_model_for_float16_is_written_and_checked_where_there_is_no_gpu(folder: Path) -> None:
    config = load_model(folder).config.model_copy(update={"dtype": "float16"})
    out = folder.with_name("half")
    assert save_model(out, config, random_tensors(config)).config.dtype == "float16"
    with pytest.raises(DTypeError):
        load_model(out)
    assert load_model(out, "bfloat16").dtype == "bfloat16"


def test_who_may_read_the_config_may_read_the_weights(folder: Path) -> None:
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


def describe(path: Path, description: str) -> None:
    """Put a description into the config of a model folder."""
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "description": description}))


def test_a_description_may_be_added_and_changes_no_digest(folder: Path) -> None:
    assert "description" not in json.loads((folder / "config.json").read_text())
    digest = load_model(folder).digest
    describe(folder, "Writes what it saw.")
    model = load_model(folder)
    assert model.digest == digest
    assert facts(model)["description"] == "Writes what it saw."


@pytest.mark.parametrize(
    ("description", "problem"),
    [
        ("é" * 301, "description: .*has 301 characters; the limit is 300: shorten it"),
        ("two\nlines", "description: .*one line of text, without control characters"),
        ("\x1b[2J", "description: .*one line of text"),
        (" ", "description: .*one line of text"),
    ],
)
def test_a_description_is_one_short_line(folder: Path, description: str, problem: str) -> None:
    describe(folder, description)
    with pytest.raises(ConfigError, match=problem):
        load_model(folder)


@pytest.mark.parametrize("task", ["classify", "pair", "tag"])
def test_labels_that_replies_cannot_repeat_are_refused(tmp_path: Path, task: Task) -> None:
    path = save_random_model(tmp_path / "c", task, vocab_size=9, labels=("a", "é" * 128))
    config = json.loads((path / "config.json").read_text())
    config["id2label"]["1"] += "a"
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="label 1 has 257 bytes; the limit is 256"):
        load_model(path)


def test_labels_that_are_long_together_are_refused() -> None:
    labels = tuple(f"{number:05}".ljust(256, "a") for number in range((4 << 20) // 256))
    assert random_config("classify", vocab_size=9, labels=labels).labels == labels
    with pytest.raises(ValidationError, match="4,194,305 bytes together; the limit is 4,194,304"):
        random_config("classify", vocab_size=9, labels=(*labels, "b"))


@pytest.mark.parametrize("task", ["classify", "pair", "tag"])
def test_classes_of_one_label_are_refused(tmp_path: Path, task: Task) -> None:
    path = save_random_model(tmp_path / "c", task, vocab_size=9, labels=("yes", "no", "maybe"))
    config = json.loads((path / "config.json").read_text())
    config["id2label"]["2"] = "yes"
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="classes 0 and 2 have the same label, 'yes'"):
        load_model(path)


def test_long_labels_count_as_several_numbers_of_a_reply() -> None:
    assert random_config("classify", vocab_size=9, labels=("a", "b")).label_numbers == 2
    assert random_config("classify", vocab_size=9, labels=("a", "é" * 128)).label_numbers == 6


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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", ["x"] * 500_000),
        ("projection_size", [-1] * 500_000),
        ("hidden_size", {f"k{i}": 0 for i in range(1000)}),
        ("k" * 100_000, 1),
    ],
    ids=["widths", "projections", "keys", "long"],
)
def test_what_is_wrong_with_a_config_is_said_in_a_short_line(
    folder: Path, field: str, value: object
) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["rnn"][field] = value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError) as caught:
        load_model(folder)
    assert len(str(caught.value)) < 2000


def test_only_the_first_of_many_findings_are_said(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["rnn"] |= {f"k{i}": 1 for i in range(50)}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"rnn\.k0: .*; and 42 more$"):
        load_model(folder)


def test_very_many_findings_are_only_counted(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["rnn"] |= {f"k{i}": 1 for i in range(1001)}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"rnn: 1,001 problems, probably unknown fields$"):
        load_model(folder)


def test_a_config_that_names_a_field_twice_is_refused(folder: Path) -> None:
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("{", '{"task": "encode", ', 1))
    with pytest.raises(ConfigError, match=r"config\.json contains the name 'task' twice"):
        load_model(folder)


def test_a_config_that_is_far_too_large_is_not_read(folder: Path) -> None:
    with (folder / "config.json").open("a") as file:
        file.write(" " * (5 << 20))
    with pytest.raises(ConfigError, match="the limit is 4,194,304"):
        load_model(folder)


def test_a_state_of_gigabytes_is_refused() -> None:
    random_config("encode", model_type="srupp", proj_size=512, window=1 << 16)
    with pytest.raises(ValueError, match=r"state would take .* lower the window"):
        random_config("encode", model_type="srupp", proj_size=512, window=1 << 20)


_WIDE = {"type": "linear", "size": 1 << 17}
_NARROW = {"type": "select", "ranges": [(0, 8)]}
WIDE_ROWS: dict[str, tuple[Task, dict[str, Any]]] = {
    "all of an input's gates": ("encode", {"hidden_size": 20_000, "bidirectional": True}),
    "both directions": ("encode", {"hidden_size": 33_000, "bidirectional": True}),
    "end states": ("classify", {"head": {"pooling": "final", "final": ("0.h",) * 1000}}),
    "a mixture": ("generate", {"vocab_size": 9, "head": {"experts": 16, "latent_size": 8192}}),
    "a pair": ("pair", {"hidden_size": 17_000, "head": {"combine": "difference"}}),
}


@pytest.mark.parametrize("name", WIDE_ROWS)
def test_rows_of_many_numbers_are_refused(name: str) -> None:
    task, fields = WIDE_ROWS[name]
    options: dict[str, Any] = {"model_type": "lstm", "input_size": 8, "hidden_size": 96} | fields
    options["head"] = HeadConfig.model_validate(fields.get("head", {}))
    with pytest.raises(ValueError, match=r"a row of .* numbers; the limit is 65,536"):
        random_config(task, labels=("a", "b"), **options)


WIDE_LAYERS: dict[str, tuple[Task, dict[str, Any]]] = {
    "outputs": ("encode", {"hidden_size": 1 << 17}),
    "inputs": ("encode", {"input_size": 1 << 17}),
    "one of several": ("encode", {"hidden_size": (1 << 17, 8)}),
    "a projection": ("encode", {"model_type": "sru", "projection_size": 1 << 17}),
    "one projection": ("encode", {"model_type": "sru", "projection_size": (1 << 17, 0)}),
    "projected h": ("encode", {"proj_size": 1 << 17}),
    "after the stack": ("classify", {"head": {"layers": [_WIDE, _NARROW]}}),
    "selected": ("classify", {"head": {"layers": [_NARROW | {"ranges": [(0, 96)] * 1024}]}}),
    "before it": ("tag", {"input_width": 8, "input_layers": [_WIDE, _NARROW]}),
}


@pytest.mark.parametrize("name", WIDE_LAYERS)
def test_a_layer_that_makes_rows_of_many_numbers_is_refused(name: str) -> None:
    task, fields = WIDE_LAYERS[name]
    options: dict[str, Any] = {"model_type": "lstm", "input_size": 8, "hidden_size": 96} | fields

    def config() -> object:
        options["head"] = HeadConfig.model_validate(fields.get("head", {}))
        return random_config(task, labels=("a", "b"), num_layers=2, **options)

    with pytest.raises(ValueError, match=r"less than or equal to 65536|over the limit of 65,536"):
        config()


def test_the_steps_of_a_piece_follow_the_widest_row_of_a_layer(tmp_path: Path) -> None:
    """A projection may be much wider than what a layer reads and writes."""

    def rows(projection: int) -> int:
        path = save_random_model(
            tmp_path / str(projection), "encode", model_type="sru", input_size=8, hidden_size=8,
            num_layers=1, projection_size=(projection,),
        )  # fmt: skip
        return load_model(path).network.piece_rows

    assert (rows(0), rows(1 << 16)) == (1024, 64)


def edit_config(folder: Path, **fields: object) -> None:
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))


def test_a_folder_of_a_newer_format_asks_for_an_upgrade(folder: Path) -> None:
    edit_config(folder, format_version=2, a_field_of_the_future="yes")
    with pytest.raises(ConfigError, match=r"newer sruserve \(format version 2.*: upgrade sruserve"):
        load_model(folder)


def test_a_folder_without_a_format_version_has_the_first(folder: Path) -> None:
    assert "format_version" not in json.loads((folder / "config.json").read_text())
    digest = load_model(folder).digest
    edit_config(folder, format_version=1)
    assert load_model(folder).digest == digest


@pytest.mark.parametrize("version", [0, "two", None, 1.5])
def test_a_format_version_that_is_no_version_is_refused(folder: Path, version: object) -> None:
    edit_config(folder, format_version=version)
    with pytest.raises(ConfigError, match="format_version"):
        load_model(folder)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_folder_without_its_files_is_refused(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(ModelError, match=missing):
        load_model(folder)


def test_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="nothing does not exist"):
        load_model(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match="file is not a folder"):
        load_model(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"it has neither config\.json nor model\.onnx"):
        load_model(tmp_path)


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
    tensors["rnn.rnn_lst.1.bias"] = torch.zeros(48, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    with pytest.raises(CheckpointError) as caught:
        save_model(tmp_path / "other", config, tensors)
    for part in (
        "output.bias is missing",
        "extra is not expected",
        "embedding.weight has shape [3, 4], not [95, 16]",
        "rnn.rnn_lst.0.bias holds torch.int64",
        "rnn.rnn_lst.1.bias holds torch.float4_e2m1fn_x2",
    ):
        assert part in str(caught.value)
    assert not (tmp_path / "other").exists()


def beside(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


def test_a_model_takes_the_place_of_another_with_nothing_left_over(folder: Path) -> None:
    old = load_model(folder)
    saved = save_model(folder, old.config, random_tensors(old.config, seed=1))
    assert saved.digest == load_model(folder).digest != old.digest
    assert (saved.name, saved.path) == ("lm", folder.resolve())
    assert not (folder / "bytes.json").exists()
    assert beside(folder) == ["lm"]


def test_a_model_that_cannot_be_loaded_back_leaves_all_as_it_was(folder: Path) -> None:
    old = load_model(folder)
    short = {"bytes.json": json.dumps(PRINTABLE[:-1]).encode()}
    for path in (folder, folder.with_name("new")):
        with pytest.raises(FolderError, match="has 94 entries") as caught:
            save_model(path, old.config, random_tensors(old.config, seed=1), short)
        assert str(caught.value).startswith(f"{path}: ")
    assert load_model(folder).digest == old.digest
    assert beside(folder) == ["lm"]


def test_a_swap_that_fails_half_way_puts_the_old_model_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, rename = load_model(folder), Path.rename

    def fail_on_the_second(self: Path, target: Path) -> Path:
        if self.name == "lm" and not target.exists() and self.resolve() != folder.resolve():
            monkeypatch.undo()
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_on_the_second)
    with pytest.raises(FolderError, match="No space left"):
        save_model(folder, old.config, random_tensors(old.config, seed=1))
    assert load_model(folder).digest == old.digest
    assert beside(folder) == ["lm"]


def test_an_empty_folder_and_a_link_to_a_model_are_filled(folder: Path, tmp_path: Path) -> None:
    config = load_model(folder).config
    (tmp_path / "empty").mkdir()
    save_model(tmp_path / "empty", config, random_tensors(config))
    (tmp_path / "link").symlink_to(folder)
    saved = save_model(tmp_path / "link", config, random_tensors(config, seed=1))
    assert (tmp_path / "link").is_symlink()
    assert load_model(folder).digest == saved.digest != load_model(tmp_path / "empty").digest


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"thesis.tex": "all my work"}, "not empty and not a model folder"),
        ({"config.json": None, "thesis.tex": "all my work"}, r"it holds thesis\.tex"),
        ({"config.json": '{"hidden_act": "gelu"}'}, "is not a valid config"),
        (None, "is a file"),
    ],
)
def test_what_is_no_model_folder_is_never_replaced(
    folder: Path, tmp_path: Path, files: dict[str, str | None] | None, message: str
) -> None:
    out, config = tmp_path / "out", load_model(folder).config
    written = out if files is None else out / "thesis.tex"
    if files is None:
        out.write_text("all my work")
    else:
        out.mkdir()
        own = (folder / "config.json").read_text()
        for name, content in files.items():
            (out / name).write_text(own if content is None else content)
    before = beside(out / "any") if out.is_dir() else []
    with pytest.raises(FolderError, match=message):
        save_model(out, config, random_tensors(config))
    assert before == (beside(out / "any") if out.is_dir() else [])
    assert not written.exists() or written.read_text() == "all my work"
    assert beside(out) == ["lm", "out"]


def test_a_place_that_cannot_be_written_is_named(folder: Path, tmp_path: Path) -> None:
    config = load_model(folder).config
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match=r"cannot write .*file/out"):
        save_model(tmp_path / "file" / "out", config, random_tensors(config))


@pytest.mark.parametrize(
    "content", [b"[1, ", b"[" * 30_000 + b"]" * 30_000, b'"\xff"'], ids=["cut", "deep", "latin"]
)
def test_a_vocabulary_that_is_no_json_is_refused_under_a_valid_digest(
    folder: Path, content: bytes
) -> None:
    config, tensors = load_model(folder).config, load_file(folder / "model.safetensors")
    (folder / "bytes.json").write_bytes(content)
    digest = model_digest(config, tensors, {"bytes.json": content})
    save_file(tensors, folder / "model.safetensors", {"digest": digest})
    with pytest.raises(FolderError, match=r"bytes\.json is not valid JSON"):
        load_model(folder)


def test_a_large_list_of_bytes_is_not_read(folder: Path) -> None:
    (folder / "bytes.json").write_bytes(b"[1]".ljust((64 << 10) + 1))
    with pytest.raises(FolderError, match=r"bytes\.json: it has 65,537 bytes; the limit is 65,536"):
        load_model(folder)


@pytest.mark.parametrize("name", ["bytes.json", "tokenizer.json"])
def test_a_vocabulary_that_is_a_folder_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    with pytest.raises(FolderError, match=rf"cannot read .*{name}"):
        load_model(folder)


def test_links_that_go_in_a_circle_are_refused(folder: Path, tmp_path: Path) -> None:
    config, loop = load_model(folder).config, tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(FolderError, match="loop"):
        load_model(loop)
    with pytest.raises(FolderError, match="loop"):
        save_model(loop, config, random_tensors(config))
    assert loop.is_symlink()


def test_a_family_says_which_of_its_numbers_are_no_parameters(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = load_file(folder / "model.safetensors")
    every = sum(tensor.numel() for tensor in tensors.values())
    assert load_model(folder).parameters == every - 2  # scale_x of each layer
    monkeypatch.setattr(SRUConfig, "untrained", ())
    assert load_model(folder).parameters == every
