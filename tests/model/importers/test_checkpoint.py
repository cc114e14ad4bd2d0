"""Files that hold state dicts in some wrapping, and files that hold more than tensors."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from sruserve.model.errors import CheckpointError
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


def test_numbers_of_four_bits_are_refused(tmp_path: Path) -> None:
    packed = torch.zeros(4, 1, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    message = refused(tmp_path, {"weight_hh_l0": packed}, "encode")
    assert "cannot be converted to float32" in message
