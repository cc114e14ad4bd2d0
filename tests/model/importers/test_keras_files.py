"""Keras files that are damaged, or made to harm, are refused; nothing in them is executed."""

import os
import signal
import sys
import zipfile
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import h5py
import numpy as np
import pytest

from sruserve.model.errors import CheckpointError, ModelError
from sruserve.model.importers.build import import_checkpoint
from sruserve.model.importers.keras.trial import try_to_read
from tests.model.importers.files import refused
from tests.model.importers.keras_files import Layer, write_archive, write_legacy
from tests.preloaded import Preloaded
from tests.server.observing import until

RANDOM = np.random.default_rng(4)


def layers() -> list[Layer]:
    shapes = [(3, 16), (4, 16), (16,)]
    arrays = [RANDOM.normal(size=shape).astype(np.float32) for shape in shapes]
    config = {"units": 4, "activation": "tanh", "recurrent_activation": "sigmoid"}
    dense = [RANDOM.normal(size=shape).astype(np.float32) for shape in ((4, 2), (2,))]
    return [
        Layer("InputLayer", {"batch_shape": [None, None, 3]}, name="input"),
        Layer("LSTM", config, arrays, name="lstm"),
        Layer("Dense", {"units": 2, "activation": "softmax"}, dense, name="dense"),
    ]


KERNEL = "model_weights/lstm/lstm/kernel:0"


def test_an_array_in_another_file_is_not_read(tmp_path: Path) -> None:
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["kernel"] = np.zeros((3, 16), np.float32)
    path = write_legacy(tmp_path / "m.h5", layers())
    with h5py.File(path, "a") as file:
        del file[KERNEL]
        file[KERNEL] = h5py.ExternalLink(str(other), "kernel")
    assert "is a link to another place" in refused(tmp_path, path, "classify")


def test_an_array_stored_in_another_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(bytes(4 * 48))
    path = write_legacy(tmp_path / "m.h5", layers())
    with h5py.File(path, "a") as file:
        del file[KERNEL]
        external = [(str(tmp_path / "raw"), 0, 4 * 48)]
        file.create_dataset(KERNEL, (3, 16), np.float32, external=external)
    assert "refers to data in other files" in refused(tmp_path, path, "classify")


def test_a_virtual_array_is_not_read(tmp_path: Path) -> None:
    path = write_legacy(tmp_path / "m.h5", layers())
    with h5py.File(path, "a") as file:
        del file[KERNEL]
        layout = h5py.VirtualLayout((3, 16), np.float32)
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "kernel", (3, 16))
        file.create_virtual_dataset(KERNEL, layout)
    assert "refers to data in other files" in refused(tmp_path, path, "classify")


def test_an_array_larger_than_its_file_is_not_read(tmp_path: Path) -> None:
    path = write_legacy(tmp_path / "m.h5", layers())
    with h5py.File(path, "a") as file:
        del file[KERNEL]
        file.create_dataset(KERNEL, (1 << 20, 1 << 20), np.float32, chunks=(64, 64))
    assert "more bytes than the file" in refused(tmp_path, path, "classify")


def test_an_archive_larger_than_its_file_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "m.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", bytes(50_000_000))
    assert "Keras did not write it" in refused(tmp_path, path, "classify")


def test_weights_without_their_wiring_are_refused_with_what_to_do(tmp_path: Path) -> None:
    path = write_legacy(tmp_path / "m.h5", layers())
    with h5py.File(path, "a") as file:
        del file.attrs["model_config"]
    assert "save the whole model with model.save" in refused(tmp_path, path, "classify")


@pytest.mark.parametrize("content", ["[", "[]", "[" * 100_000, '{"class_name": "Sequential"}'])
def test_a_description_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    path = write_archive(tmp_path / "m.keras", layers())
    weights = zipfile.ZipFile(path).read("model.weights.h5")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", content)
        archive.writestr("model.weights.h5", weights)
    assert "the model's description" in refused(tmp_path, path, "classify")


def test_weights_of_another_layer_are_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "m.keras", layers())
    archive = zipfile.ZipFile(path)
    config, memory = archive.read("config.json"), BytesIO(archive.read("model.weights.h5"))
    with h5py.File(memory, "a") as file:
        file["layers/lstm/vars"].attrs["name"] = "other"
    with zipfile.ZipFile(path, "w") as changed:
        changed.writestr("config.json", config)
        changed.writestr("model.weights.h5", memory.getvalue())
    assert "layer lstm has the weights of layer other" in refused(tmp_path, path, "classify")


def test_missing_and_extra_arrays_are_named(tmp_path: Path) -> None:
    model = layers()
    model[1].arrays.pop()
    archive = refused(tmp_path, write_archive(tmp_path / "m.keras", model), "classify")
    assert "layer lstm has 2 arrays" in archive
    legacy = refused(tmp_path, write_legacy(tmp_path / "m.h5", model), "classify")
    assert "these are expected: kernel, recurrent_kernel, bias" in legacy


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_no_damaged_file_ends_in_another_error(tmp_path: Path, suffix: str) -> None:
    write = write_archive if suffix == ".keras" else write_legacy
    path = write(tmp_path / f"m{suffix}", layers())
    content = path.read_bytes()
    for _ in range(24):  # each is tried in a process of its own
        damaged = bytearray(content)
        for place in RANDOM.integers(0, len(content), 8):
            damaged[place] = RANDOM.integers(256)
        path.write_bytes(bytes(damaged[: RANDOM.integers(1, 2 * len(content))]))
        with suppress(ModelError):  # bytes that do not matter may have changed
            import_checkpoint(path, tmp_path / "out", "classify")


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_archive(tmp_path / "m.keras", layers())
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert "pip install 'sruserve[keras]'" in refused(tmp_path, path, "classify")


def endless(path: Path) -> Path:
    """A file whose second text has no number and no length, where HDF5 looks for the next one."""
    content = bytearray(write_legacy(path, layers()).read_bytes())
    first = content.index(b"GCOL") + 16
    size = int.from_bytes(content[first + 8 : first + 16], "little")
    second = first + 16 + -(-size // 8) * 8
    content[second : second + 16] = bytes(16)
    path.write_bytes(content)
    return path


def test_a_file_that_hdf5_never_ends_to_read_is_refused(tmp_path: Path) -> None:
    path = endless(tmp_path / "m.h5")
    with pytest.raises(CheckpointError, match="is damaged: HDF5 cannot read it within 1 seconds"):
        try_to_read(path, seconds=1)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_import_that_hdf5_never_ends(tmp_path: Path, stop: signal.Signals) -> None:
    path = endless(tmp_path / "m.h5")
    command = ("-m", "sruserve", "import", str(path), str(tmp_path / "out"), "--task", "classify")
    process = Preloaded.reading(*command, environment=os.environ)
    until(lambda: bool(_children(process.pid)))
    (child,) = _children(process.pid)
    process.send_signal(stop)
    process.communicate(300)
    assert process.returncode not in (0, None)
    until(lambda: not Path(f"/proc/{child}/exe").exists())


def _children(pid: int) -> list[str]:
    """The processes that a process has started."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
