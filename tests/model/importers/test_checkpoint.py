"""Files that hold state dicts in some wrapping, and files that hold more than tensors."""

from collections import OrderedDict
from collections.abc import Callable
from errno import EACCES
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.checkpoint import read_checkpoint
from tests.model.importers.running import refused

TENSORS = {"rnn_lst.0.bias": torch.arange(4.0), "out.weight": torch.eye(3)}


def saved(tmp_path: Path, content: Any) -> Path:
    torch.save(content, tmp_path / "weights.pt")
    return tmp_path / "weights.pt"


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    return str(caught.value)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda tensors: tensors,
        OrderedDict,
        lambda tensors: {"state_dict": tensors, "epoch": 3},
        lambda tensors: {"model_state_dict": tensors, "optimizer": {"state": {}}},
        lambda tensors: {"model": tensors, "args": {"depth": 2}},
        lambda tensors: {"state_dict": {"network": tensors, "updates": 1}, "config": {}},
        lambda tensors: {"model": {f"module.{k}": t for k, t in tensors.items()}},
        lambda tensors: {
            "net": {f"model._orig_mod.{k}": t for k, t in tensors.items()},
            "acc": 0.5,
        },
        lambda tensors: {"generator": tensors, "optimizer": {"state": {0: {}}, "lr": 0.1}},
        lambda tensors: {f"module.a.model.{k}": t for k, t in tensors.items()},
        lambda tensors: {k.replace(".", "._orig_mod.", 1): t for k, t in tensors.items()},
        lambda tensors: {
            "epoch": 3,
            "pytorch-lightning_version": "2.5.0",
            "state_dict": {f"model.{k}": t for k, t in tensors.items()},
            "loops": {"fit_loop": {"state_dict": {}}},
            "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5)}},
            "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(2)}}}],
            "lr_schedulers": [],
            "hyper_parameters": {"hidden_size": 8},
        },
    ],
)
def test_what_wraps_a_state_dict_is_taken_off(tmp_path: Path, wrap: Callable[[Any], Any]) -> None:
    tensors = read_checkpoint(saved(tmp_path, wrap(TENSORS)))
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


def test_a_safetensors_file_is_read(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "weights.safetensors")
    assert read_checkpoint(tmp_path / "weights.safetensors").keys() == TENSORS.keys()
    (tmp_path / "weights.safetensors").write_bytes(b"no")
    assert "cannot read" in refusal(tmp_path / "weights.safetensors")


class Payload:
    """Unpickling this would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.path, "pwned"))


def test_a_pickle_is_never_executed(tmp_path: Path) -> None:
    content = {**TENSORS, "payload": Payload(tmp_path / "pwned")}
    assert "not unpickled" in refusal(saved(tmp_path, content))
    assert not (tmp_path / "pwned").exists()


def pickles() -> dict[str, Any]:
    """As the LRN repository and awd-lstm-lm save them."""
    model, criterion = torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss()
    return {"model": model, "list": [model, criterion, torch.optim.SGD(model.parameters())]}


@pytest.mark.parametrize("kind", ["model", "list"])
def test_the_lines_in_the_refusal_of_a_whole_model_make_it_a_state_dict(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, pickles()[kind])
    message = refusal(path)
    first, _, rest = message.partition("on the path: ")[2].partition("; ")
    second, _, other = rest.partition(" - or ")
    if kind == "list":
        second = second.replace("saved.state_dict()", other.partition(" for a list")[0])
    target = tmp_path / "converted.pt"
    exec(f"{first}\n{second}".replace("'weights.pt'", repr(str(target))), {"torch": torch})
    assert read_checkpoint(target).keys() == {"weight", "bias"}


@pytest.mark.parametrize("kind", ["compressed", "overlapping"])
def test_an_archive_of_more_than_the_file_s_bytes_is_not_unpacked(
    tmp_path: Path, kind: str
) -> None:
    path = saved(tmp_path, {"rnn_lst.0.weight": torch.zeros(300, 300)})
    bomb = tmp_path / "bomb.pt"
    with ZipFile(path) as source, ZipFile(bomb, "w") as target:
        for entry in source.infolist():
            data = source.read(entry)
            target.writestr(entry, data, ZIP_DEFLATED if kind == "compressed" else ZIP_STORED)
        if kind == "overlapping":  # one entry's bytes under a second name
            entry = max(target.infolist(), key=lambda entry: entry.file_size)
            target.filelist.append(entry)
    assert "torch.save did not write it" in refusal(bomb)


@pytest.mark.parametrize(
    ("place", "value", "reason"), [(6, 255, "zip file version 25.5"), (8, 32, "")]
)
def test_an_archive_with_odd_fields_is_refused(
    tmp_path: Path, place: int, value: int, reason: str
) -> None:
    path = saved(tmp_path, TENSORS)
    content = path.read_bytes()
    at = content.index(b"PK\x01\x02") + place
    path.write_bytes(content[:at] + bytes([value]) + content[at + 1 :])
    message = refusal(path)
    assert str(path) in message
    assert reason in message


@pytest.mark.parametrize("content", [b"", b"\x80\x04N.", b"not a checkpoint", b"PK\x03\x04"])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "weights.pt").write_bytes(content)
    refusal(tmp_path / "weights.pt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.ones(2)], "holds list, not a state dict"),
        ({}, "holds dict, not a state dict"),
        (torch.ones(2), "not a state dict"),
        ({**TENSORS, "epoch": 3}, "epoch is not a tensor"),
        ({**TENSORS, "n" * 9999: 3}, "… is not a tensor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_state_dict_is_named_shortly(tmp_path: Path, content: Any, message: str) -> None:
    error = refusal(saved(tmp_path, content))
    assert message in error
    assert len(error) < 300 + len(str(tmp_path))


def test_wrappers_in_wrappers_have_an_end(tmp_path: Path) -> None:
    content: dict[str, Any] = dict(TENSORS)
    for _ in range(50):
        content = {"model": content}
    assert "model is not a tensor" in refusal(saved(tmp_path, content))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "no.pt" in refusal(tmp_path / "no.pt")


@pytest.mark.filterwarnings("ignore")  # torch warns of CSR and of quantized tensors
@pytest.mark.parametrize("kind", ["sparse", "csr", "quantized", "meta", "expanded", "deep"])
def test_tensors_that_are_not_dense_numbers_are_refused(tmp_path: Path, kind: str) -> None:
    dense = torch.ones(4, 8)
    make: dict[str, Callable[[], Tensor]] = {
        "sparse": dense.to_sparse,
        "csr": dense.to_sparse_csr,
        "quantized": lambda: torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8),
        "meta": lambda: dense.to("meta"),
        "expanded": lambda: torch.ones(1).expand(1 << 20, 1 << 20),
        "deep": lambda: torch.ones([1] * 60),
    }
    message = refusal(saved(tmp_path, {**TENSORS, "embedding.weight": make[kind]()}))
    assert "ordinary dense tensors" in message or "not unpickled" in message


def test_tensors_that_share_few_numbers_are_refused(tmp_path: Path) -> None:
    shared = torch.ones(1 << 20)  # 4 MiB
    layers = {f"weight_hh_l{i}": shared.view(1 << 11, 1 << 9) for i in range(17)}
    path = saved(tmp_path, layers)
    assert path.stat().st_size < 5 << 20
    assert "share 4,194,304 bytes" in refusal(path)
    del layers["weight_hh_l16"]
    assert len(read_checkpoint(saved(tmp_path, layers))) == 16


def test_tied_weights_of_any_size_are_read(tmp_path: Path) -> None:
    tied = torch.zeros(1 << 12, 1 << 12)  # 64 MiB
    names = ["embedding.weight", "output.weight"]
    assert list(read_checkpoint(saved(tmp_path, dict.fromkeys(names, tied)))) == names


def test_numbers_of_four_bits_are_refused(tmp_path: Path) -> None:
    packed = torch.zeros(4, 1, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    message = refused(tmp_path, {"weight_hh_l0": packed}, "encode")
    assert "cannot be converted to float32" in message


def test_a_prefix_that_says_what_the_tensors_are_stays(tmp_path: Path) -> None:
    for name in "rnn_lst.0.weight", "layers.0.linear.weight", "rnns.0.weight_hh_l0", "cell_0._W":
        assert list(read_checkpoint(saved(tmp_path, {f"a.b.{name}": torch.ones(2)}))) == [name]


def test_two_state_dicts_in_a_file_are_named(tmp_path: Path) -> None:
    message = refusal(saved(tmp_path, {"student": TENSORS, "teacher": TENSORS}))
    assert "holds 2 state dicts (student, teacher)" in message


def test_two_names_that_differ_in_torch_compile_s_prefix_alone_are_refused(tmp_path: Path) -> None:
    message = refusal(saved(tmp_path, {**TENSORS, "_orig_mod.out.weight": torch.eye(3)}))
    assert "_orig_mod.out.weight and out.weight are one name" in message


@pytest.mark.parametrize(
    ("renames", "names"),
    [
        (["out=fc"], ["fc.weight", "rnn_lst.0.bias"]),
        (["out.weight=fc"], ["fc", "rnn_lst.0.bias"]),
        (["rnn_lst.=rnn.rnn_lst."], ["out.weight", "rnn.rnn_lst.0.bias"]),
        (["model.out=fc", "fc=embedding"], ["embedding.weight", "rnn_lst.0.bias"]),
        (["model.rnn_lst.0=", "out=fc"], ["bias", "fc.weight"]),
        (["model.out.weight=a", "rnn_lst=b"], ["a", "b.0.bias"]),
        (["out=a", "a.weight=b.weight"], ["b.weight", "rnn_lst.0.bias"]),
    ],
    ids=str,
)
def test_names_and_prefixes_are_renamed_in_order(
    tmp_path: Path, renames: list[str], names: list[str]
) -> None:
    path = saved(tmp_path, {f"model.{name}": tensor for name, tensor in TENSORS.items()})
    assert sorted(read_checkpoint(path, renames)) == names


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ("outer=fc", "--rename outer=…: no tensor has this name or prefix; the checkpoint holds"),
        ("ou=fc", r"rnn_lst.0.bias [4], out.weight [3, 3]"),
        ("out=rnn_lst.0", None),
        ("out.weight=rnn_lst.0.bias", "rnn_lst.0.bias exists already"),
        ("out.weight=", "the new name is missing"),
        ("out", "must be OLD=NEW"),
        ("=out", "must be OLD=NEW"),
        (".=out", "must be OLD=NEW"),
    ],
)
def test_a_rename_that_does_not_fit_is_refused(
    tmp_path: Path, rename: str, message: str | None
) -> None:
    path = saved(tmp_path, TENSORS)
    if message is None:
        assert "rnn_lst.0.weight" in read_checkpoint(path, [rename])
        return
    with pytest.raises(OptionError) as caught:
        read_checkpoint(path, [rename])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.onnx", b"\x08\x08\x12\x07pytorch", "an ONNX graph"),
        ("m.h5", b"\x89HDF\r\n\x1a\n...", "a file of Keras or HDF5"),
        ("m.weights", b"\x89HDF\r\n\x1a\n...", "a file of Keras or HDF5"),
        ("m.keras", b"PK", "a file of Keras or HDF5"),
        ("m.npz", b"PK", "an archive of NumPy"),
        ("m.gguf", b"GGUF", "a GGUF file"),
    ],
)
def test_a_file_of_another_framework_is_refused_with_what_to_do(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    error = refusal(tmp_path / name)
    assert f"{name} is {message}" in error
    assert "torch.save" in error or "import it with --format" in error


def test_a_keras_archive_of_any_name_and_a_torchscript_archive_are_refused(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", "")
    assert "a file of Keras or HDF5" in refusal(tmp_path / "model.zip")
    with ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("model/data.pkl", "")
        archive.writestr("model/constants.pkl", "")
    assert "a TorchScript archive" in refusal(tmp_path / "model.pt")


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_a_file_that_may_not_be_read_is_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def locked(path: Path, *_: object) -> int:
        raise PermissionError(EACCES, "Permission denied", str(path))

    (tmp_path / name).write_bytes(b"")
    monkeypatch.setattr("os.open", locked)  # root may read any file
    assert refusal(tmp_path / name) == f"cannot read {tmp_path / name}: Permission denied"


def test_a_folder_is_not_read_as_a_checkpoint(tmp_path: Path) -> None:
    assert "it is a folder; name the file of the weights" in refusal(tmp_path)


def test_a_name_of_thousands_of_characters_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"ab." * 1000 + "weight": torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match="a name of 3,006 characters; the limit is 1,024"):
        read_checkpoint(path)
