"""Weights are the process's own memory; files without valid weights are refused in one line."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from sruserve.kernels import single
from sruserve.model import weights
from sruserve.model.errors import ModelError
from sruserve.model.files import read_regular
from sruserve.model.folder import Model, load_model
from sruserve.model.importers.build import _read_labels, import_checkpoint
from sruserve.model.importers.checkpoint import read_checkpoint
from sruserve.model.importers.vocabulary import vocabulary
from sruserve.model.verification.cases import Case
from sruserve.model.weights import read_tensors
from tests.support import save_random_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_random_model(tmp_path / "lm", vocabulary=list(range(32, 127)), seed=1)


def logits(model: Model) -> Tensor:
    states = model.network.layout.allocate(1)
    return model.network.logits(model.network.hidden(torch.arange(20), single(states, 20)))


@pytest.mark.parametrize("change", ["overwritten", "cut"])
@pytest.mark.parametrize("read", [load_model, lambda folder: load_file_of(folder)[0]])
def test_what_becomes_of_the_file_changes_nothing_that_was_read(
    folder: Path, tmp_path: Path, change: str, read: Callable[[Path], Any]
) -> None:
    weights = folder / "model.safetensors"
    other = save_random_model(tmp_path / "other", vocabulary=list(range(32, 127)), seed=2)
    loaded = read(folder)
    numbers = logits(loaded) if isinstance(loaded, Model) else loaded["output.weight"].clone()
    if change == "cut":
        os.truncate(weights, 0)
    else:
        shutil.copyfile(other / "model.safetensors", weights)  # into the same file, as cp does
    again = logits(loaded) if isinstance(loaded, Model) else loaded["output.weight"]
    torch.testing.assert_close(again, numbers, rtol=0, atol=0)


def load_file_of(folder: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    return read_tensors(folder / "model.safetensors")


def test_tensors_are_those_that_the_library_reads(tmp_path: Path) -> None:
    dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.uint8]
    dtypes += [torch.int8, torch.int16, torch.int32, torch.int64, torch.float8_e4m3fn]
    tensors = {str(d): torch.randn(3, 8).mul(9).to(d) for d in dtypes}
    tensors |= {"scalar": torch.tensor(2.5), "none": torch.zeros(0, 4), "odd": torch.ones(7).bool()}
    save_file(tensors, tmp_path / "a.safetensors", {"digest": "d"})
    loaded, metadata = read_tensors(tmp_path / "a.safetensors")
    expected = load_file(tmp_path / "a.safetensors")
    assert loaded.keys() == expected.keys()
    assert metadata == {"digest": "d"}
    for name, tensor in expected.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(bytes_of(loaded[name]), bytes_of(tensor))


def bytes_of(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def written(path: Path, header: bytes, content: bytes = bytes(16)) -> Path:
    path.write_bytes(len(header).to_bytes(8, "little") + header + content)
    return path


TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HUGE = b"%d," % (1 << 62)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b'{"a":%s,"a":%s}', "contains the name 'a' twice"),
        (b'{"a":%s,"b":%s}', "'b' begins at byte 0, not at byte 8"),
        (b'{"a":%s}', "after the last tensor"),
        (b'{"a":{"dtype":"F32","dtype":"F64","shape":[],"data_offsets":[0,16]}}', "'dtype' twice"),
        (b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,16]}}', "16 bytes, but its shape"),
        (
            b'{"a":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}}',
            "the file is truncated: it ends in 'a'",
        ),
        (b'{"a":{"dtype":"F32","shape":[-2,-2],"data_offsets":[0,16]}}', "must hold integers"),
        (b'{"a":{"dtype":"F32","shape":[4.0],"data_offsets":[0,16]}}', "must hold integers"),
        (b'{"a":{"dtype":"F5","shape":[4],"data_offsets":[0,16]}}', "has dtype 'F5'"),
        (b'{"a":{"dtype":[],"shape":[4],"data_offsets":[0,16]}}', "'a'"),
        (b'{"a":{"dtype":"F32","shape":[' + b"1," * 99 + b'4],"data_offsets":[0,16]}}', "has 100"),
        (b'{"a":{"dtype":"U8","shape":[' + HUGE * 60 + b'0],"data_offsets":[0,0]}}', "too many"),
        (b'{"a":[]}', "'a' has no valid dtype"),
        (b'{"__metadata__":[]}', "metadata is not a JSON object"),
        (b"[]", "is not a JSON object"),
        (b"{", "not valid JSON"),
        (b"[" * 200_000, "not valid JSON"),
    ],
)
def test_a_header_that_describes_something_else_is_refused(
    tmp_path: Path, header: bytes, message: str
) -> None:
    tensor = json.dumps(TENSOR).encode()
    header = header.replace(b"%s", tensor)
    with pytest.raises(SafetensorError, match=message):
        read_tensors(written(tmp_path / "a.safetensors", header))


@pytest.mark.parametrize("size", [1 << 62, 17 << 20])
def test_a_header_of_absurd_size_is_refused_unread(tmp_path: Path, size: int) -> None:
    (tmp_path / "a.safetensors").write_bytes(size.to_bytes(8, "little") + b"{}")
    with pytest.raises(SafetensorError, match="its header has"):
        read_tensors(tmp_path / "a.safetensors")


def test_no_memory_is_taken_for_bytes_that_are_not_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    empty = torch.empty

    def counted(size: int, **options: Any) -> Tensor:
        taken.append(size)
        return empty(size, **options)

    monkeypatch.setattr(torch, "empty", counted)
    header = b'{"a":{"dtype":"U8","shape":[999999999999],"data_offsets":[0,999999999999]}}'
    with pytest.raises(SafetensorError, match="the file is truncated: it ends in 'a'"):
        read_tensors(written(tmp_path / "a.safetensors", header))
    assert not taken


def test_weights_beyond_the_memory_are_refused_whatever_the_config_describes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "memory_bytes", lambda: 50)
    path = written(tmp_path / "a.safetensors", b'{"a":%s}' % json.dumps(TENSOR).encode())
    with pytest.raises(OSError, match="the limit is 50"):
        read_tensors(path, max_bytes=1 << 40)


def test_weights_beyond_the_available_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "available_memory", lambda: 50)
    path = written(tmp_path / "a.safetensors", b'{"a":%s}' % json.dumps(TENSOR).encode())
    with pytest.raises(OSError, match="50 bytes of memory are available now: free some"):
        read_tensors(path)


def holes(path: Path, stored: int) -> Path:
    """A file of 32 MiB, of which the beginning is stored."""
    size = 32 << 20
    header = b'{"a":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
    path = written(path, header, bytes(stored))
    os.truncate(path, 8 + len(header) + size)
    if path.stat().st_blocks * 512 > path.stat().st_size // 2 > stored:
        pytest.skip("the filesystem has no holes")
    return path


def test_a_file_that_is_mostly_holes_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    path = holes(tmp_path / "a.safetensors", stored=1 << 20)
    with pytest.raises(OSError, match=r"most are holes.*cp --sparse=never"):
        read_tensors(path)


def test_a_file_that_states_no_size_is_read_up_to_the_limit() -> None:
    maps = Path("/proc/self/maps")
    assert not maps.stat().st_size
    with pytest.raises(OSError, match="it has more than 100 bytes"):
        read_regular(maps, 100)
    assert read_regular(maps).startswith(maps.read_bytes()[:100])


def test_a_file_with_some_holes_is_read(tmp_path: Path) -> None:
    tensors, _ = read_tensors(holes(tmp_path / "a.safetensors", stored=8 << 20))
    assert len(tensors["a"]) == 32 << 20


def test_names_are_reported_without_what_a_terminal_would_obey(folder: Path) -> None:
    tensors, metadata = load_file_of(folder)
    save_file(tensors | {"\x1b[2Jodd\n": torch.zeros(1)}, folder / "model.safetensors", metadata)
    with pytest.raises(ModelError) as refused:
        load_model(folder)
    assert r"\x1b[2Jodd  is not expected" in str(refused.value)
    assert str(refused.value).isprintable()


def test_a_repeated_name_is_refused_in_a_folder_a_checkpoint_and_a_case(
    tmp_path: Path, folder: Path
) -> None:
    tensor = json.dumps(TENSOR).encode()
    content = written(tmp_path / "a.safetensors", b'{"x":%s,"x":%s}' % (tensor, tensor))
    shutil.copyfile(content, folder / "model.safetensors")
    reads: list[Callable[[], Any]] = [
        lambda: load_model(folder), lambda: read_checkpoint(content), lambda: Case(content)
    ]  # fmt: skip
    for read in reads:
        with pytest.raises(ModelError, match=r"cannot read .*'x' twice"):
            read()


ODD = ["endless", "pipe", "folder", "huge"]


def odd_file(path: Path, kind: str) -> Path:
    """A device without an end, a pipe without a writer, a folder, or a sparse file of 16 TB."""
    path.unlink(missing_ok=True)
    if kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, (1 << 43) - 1)
    return path


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "bytes.json", "tokenizer.json"]
)
def test_what_is_no_regular_file_is_refused_in_a_model_folder(
    folder: Path, name: str, kind: str
) -> None:
    odd_file(folder / name, kind)
    with pytest.raises(ModelError, match=rf"^cannot read \S*{name}: [^\n]*$"):
        load_model(folder)


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "options", "vocab", "labels", "case"])
def test_what_is_no_regular_file_is_refused_by_the_commands(
    tmp_path: Path, name: str, kind: str
) -> None:
    weights, out = tmp_path / "weights.pt", tmp_path / "out"
    torch.save({"rnn.weight_ih_l0": torch.zeros(4, 2)}, weights)
    odd = odd_file(tmp_path / name, kind)
    reads: dict[str, Callable[[], Any]] = {
        "options": lambda: import_checkpoint(weights, out, "encode", odd, format="sru"),
        "vocab": lambda: vocabulary(odd, 5),
        "labels": lambda: _read_labels(odd),
        "case": lambda: Case(odd),
    }
    read = reads.get(name, lambda: import_checkpoint(odd, out, "encode"))
    with pytest.raises(ModelError, match=rf"^cannot read \S*{name}: [^\n]*$"):
        read()
