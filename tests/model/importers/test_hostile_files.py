"""Small files that would take any memory or time to read are refused."""

import resource
import struct
import tracemalloc
import zipfile
import zlib
from bz2 import compress
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch

from sruserve.model.errors import CheckpointError
from sruserve.model.importers import build
from sruserve.model.importers.checkpoint import read_checkpoint
from tests.model.importers.files import refused, run_import
from tests.model.importers.keras_files import write_legacy
from tests.model.importers.test_keras_files import layers

MIB = 1 << 20


def lying_archive(path: Path, method: int, packed: bytes) -> Path:
    """A `.keras` file whose directory says that config.json has 100 bytes."""
    body, central = b"", b""
    for name, kind, data, size in (
        (b"config.json", method, packed, 100),
        (b"model.weights.h5", 0, b"x", 1),
    ):
        header = struct.pack("<HHHHHIIIHH", 20, 0, kind, 0, 33, 0, len(data), size, len(name), 0)
        end = struct.pack("<HHHII", 0, 0, 0, 0, len(body))
        central += b"PK\1\2" + struct.pack("<H", 20) + header + end + name
        body += b"PK\3\4" + header + name + data
    sizes = struct.pack("<HHHHIIH", 0, 0, 2, 2, len(central), len(body), 0)
    path.write_bytes(body + central + b"PK\5\6" + sizes)
    return path


def pickled(path: Path, pickle: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickle)
        archive.writestr("a/version", b"3\n")
        archive.writestr("a/byteorder", b"little")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["deflate", "bzip2"])
def test_an_archive_that_lies_about_its_size_is_not_unpacked(tmp_path: Path, kind: str) -> None:
    content = b" " * (100 * MIB)
    deflate = zlib.compressobj(9, 8, -15)
    packed = deflate.compress(content) + deflate.flush() if kind == "deflate" else compress(content)
    path = lying_archive(tmp_path / "m.keras", 8 if kind == "deflate" else 12, packed)
    del content
    tracemalloc.start()
    try:
        refused(tmp_path, path, "classify")
        assert tracemalloc.get_traced_memory()[1] < 50 * MIB
    finally:
        tracemalloc.stop()


def test_a_list_that_may_name_one_text_many_times_is_not_read(tmp_path: Path) -> None:
    path = write_legacy(tmp_path / "m.h5", layers())
    with h5py.File(path, "a") as file:
        names = ["kernel"] * 65
        file["model_weights/lstm"].attrs.create("weight_names", names, dtype=h5py.string_dtype())
    assert "lists 65 texts of variable length" in refused(tmp_path, path, "classify")


def test_texts_of_more_bytes_than_the_file_are_not_read(tmp_path: Path) -> None:
    path = write_legacy(tmp_path / "m.h5", layers())
    with h5py.File(path, "a") as file:
        attributes = file["model_weights/lstm"].attrs
        names = ["k" * MIB, *["q"] * 31]
        attributes.create("weight_names", names, dtype=h5py.string_dtype())
    content = bytearray(path.read_bytes())
    at = content.find(struct.pack("<I", MIB))
    while content[at + 16 : at + 20] != struct.pack("<I", 1):
        at = content.find(struct.pack("<I", MIB), at + 1)
    for i in range(1, 32):
        content[at + 16 * i : at + 16 * (i + 1)] = content[at : at + 16]
    path.write_bytes(bytes(content))
    assert "has more bytes than the file" in refused(tmp_path, path, "classify")


ONE_HASH = b"\x8a\x08" + (2**61 - 1).to_bytes(8, "little")  # that of 0, and of its multiples
BELOW = b"\x8a\x08" + (-(2**53)).to_bytes(8, "little", signed=True)
NESTED = b"N" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(40))


@pytest.mark.parametrize(
    ("pickle", "what"),
    [
        (b"cbuiltins\nbytearray\n\x8a\x08" + struct.pack("<q", 1 << 62) + b"\x85R.", "bytearray"),
        (b"}" + NESTED + b"Ns.", "a key that is neither a text nor a number"),
        (b"ccollections\nOrderedDict\n]]" + NESTED + b"aNaa\x85R.", "a key that is neither"),
        (b"c__builtin__\nset\n]" + NESTED + b"a\x85R.", "a key that is neither"),
        (b"(X\7\0\0\0storagectorch\nFloatStorage\n" + NESTED + b"NK\1tQ.", "a key that"),
        (b"(X\7\0\0\0storagectorch\nFloatStorage\nK\1NJ\0\0\0\x40tQ.", "more bytes than the file"),
        (b"}" + ONE_HASH + b"Ns.", "a number of more than 53 bits as a key"),
        (b"}(" + BELOW + b"Nu.", "a number of more than 53 bits as a key"),
        (b"ccollections\nOrderedDict\n]]" + ONE_HASH + b"aNaa\x85R.", "a number of more than 53"),
        (b"c__builtin__\nset\n]" + ONE_HASH + b"a\x85R.", "a number of more than 53"),
        (b"X\x80\x96\x98\0" + b"a" * 10_000_000 + b"q\0" + b"c_codecs\nencode\nh\0"
         b"X\6\0\0\0latin1\x86R0.", "steps"),
    ],
    ids=["array", "dict", "ordered", "set", "storage", "numbers", "hash", "hashes",
         "hash ordered", "hash set", "copies"],
)  # fmt: skip
def test_a_pickle_that_would_take_any_memory_or_time_is_not_loaded(
    tmp_path: Path, pickle: bytes, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any, **__: Any) -> Any:
        raise AssertionError("loaded")

    monkeypatch.setattr(torch, "load", load)
    assert what in refusal(pickled(tmp_path / "w.pt", b"\x80\2" + pickle))


def test_a_file_of_an_older_torch_is_read(tmp_path: Path) -> None:
    tensors = {"rnn.weight": torch.ones(3, 2).t(), "rnn.bias": torch.ones(9)[3:]}
    path = tmp_path / "w.pt"
    torch.save(tensors, path, _use_new_zipfile_serialization=False)
    read = read_checkpoint(path)
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


def test_an_import_that_runs_out_of_its_memory_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, during = resource.getrlimit(resource.RLIMIT_AS), []

    def read(*_: Any) -> Any:
        during.append(resource.getrlimit(resource.RLIMIT_AS)[0])
        raise MemoryError

    monkeypatch.setattr(build, "read_checkpoint", read)
    torch.save({"weight": torch.ones(2)}, tmp_path / "w.pt")
    result = run_import(tmp_path, tmp_path / "w.pt", "encode")
    assert result.exit_code == 1
    assert "takes far more memory than a file of its size should" in " ".join(result.output.split())
    assert during[0] != resource.RLIM_INFINITY
    assert resource.getrlimit(resource.RLIMIT_AS) == before
