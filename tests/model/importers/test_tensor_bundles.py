"""The reader of TensorFlow's checkpoints, on its own files and on damaged ones."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sruserve.model.errors import CheckpointError
from sruserve.model.importers.tensorflow.bundle import Bundle
from sruserve.model.importers.tensorflow.crc32c import crc32c
from tests.model.importers.bundles import (
    block,
    entry,
    fixed,
    handle,
    header,
    message,
    number,
    save_bundle,
    table,
    table_of,
)

DATA = Path(__file__).parents[2] / "data/lrn_tf"
ONES = np.ones((2, 3), np.float32)
FILE = "model.data-00000-of-00001"


def write(folder: Path, index: bytes, data: bytes = ONES.tobytes()) -> Path:
    (folder / "model.index").write_bytes(index)
    (folder / FILE).write_bytes(data)
    return folder / "model"


def test_the_variables_of_a_training_run_are_read() -> None:
    bundle = Bundle(DATA / "lrn/model-5000")
    assert bundle.shapes["global_step"] == ()
    assert bundle.shapes["InferNet/label/W_0_0/Adam_1"] == (6, 3)
    assert bundle.tensor("beta1_power").shape == ()
    # The last numbers of the file, as TensorFlow reads them, before the eight bytes of the step.
    raw = (DATA / "lrn/model-5000.data-00000-of-00001").read_bytes()
    last = np.frombuffer(raw[:-8], "<f4")[-1]
    assert bundle.tensor("beta2_power").item() == last


def test_checksums_are_those_of_the_standard_at_every_length() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0
    data = random.Random(0).randbytes(3 << 19)
    pieces = [crc32c(data[:size]) for size in (len(data), len(data) - 1, 9 << 16)]
    expected, crc = {}, 0xFFFFFFFF
    for size, byte in enumerate(data, 1):
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        expected[size] = crc ^ 0xFFFFFFFF
    assert pieces == [expected[size] for size in (len(data), len(data) - 1, 9 << 16)]


@pytest.mark.parametrize(("dtype", "number"), [("<f4", 1), ("<f8", 2), ("<f2", 19)])
def test_floats_of_three_widths_become_float32(tmp_path: Path, dtype: str, number: int) -> None:
    array = np.arange(6, dtype=dtype).reshape(2, 3)
    index = table({b"": header(), b"a": entry(array, 0, number)})
    tensor = Bundle(write(tmp_path, index, array.tobytes())).tensor("a")
    assert tensor.dtype == torch.float32
    assert tensor.tolist() == array.tolist()


def test_numbers_may_be_in_several_files(tmp_path: Path) -> None:
    own = entry(ONES, 0) + number(3, 1)
    path = write(tmp_path, table({b"": header(shards=2), b"a": own}))
    (tmp_path / "model.data-00001-of-00002").write_bytes(ONES.tobytes())
    assert Bundle(path).tensor("a").tolist() == ONES.tolist()


GOOD = table({b"": header(), b"a": entry(ONES, 0)})
ONE_BLOCK = block({b"": header(), b"a": entry(ONES, 0)})


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        (b"", "no table"),
        (GOOD[:-1], "no table"),
        (GOOD[:-48] + b"\xff" * 40 + GOOD[-8:], "more than 64 bits"),
        (GOOD[5:], "not inside"),
        (b"\1" + GOOD[1:], "wrong checksum"),
        (table({b"": header()}, kind=1), "compressed"),
        (table({b"a": b""}), "does not name its data files"),
        (table({b"": header(endianness=1)}), "big-endian"),
        (table({b"": header(), b"\xff": entry(ONES, 0)}), "no text"),
        (table({b"": header(), b"a" * 1025: b""}), "very long key"),
        (table({b"": header(), b"a": b"\x0b"}), "unknown kind 3"),
        (table({b"": header(), b"a": b"\x08" + b"\xff" * 9 + b"\x7f"}), "more than 64 bits"),
        (table({b"": header(), b"a": message(1, b"")}), "another type"),
        (table({b"": header(), b"a": number(2, 1)}), "a number where"),
        (table({b"": header(), b"a": number(4, (1 << 64) - 1)}), "negative size"),
        (table({b"": header(), b"a": b"\x0a\x05"}), "ends inside a field"),
        (table({b"": header(), b"a": message(2, message(2, b"") * 9)}), "too many dimensions"),
        (table_of([ONE_BLOCK, ONE_BLOCK]), "a key twice"),
        (table_of([ONE_BLOCK], places=[handle(0, len(ONE_BLOCK))] * 2), "overlap"),
        (table_of([ONE_BLOCK], places=[handle(0, 1 << 40)]), "not inside"),
        (table_of([b"\xff\xff\xff\xff"]), "list of places"),
        (table_of([b"\x01\x00\x00" + bytes(4)]), "does not fit its block"),
        (table_of([b"\x00\x05\x05a" + bytes(4)]), "does not fit its block"),
        (table_of([b"\x80" + bytes(4)]), "ends inside a number"),
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, index: bytes, problem: str) -> None:
    path = write(tmp_path, index)
    with pytest.raises(CheckpointError, match=r"model\.index is no index of a") as caught:
        Bundle(path)
    assert problem in str(caught.value)


def test_random_damage_ends_in_an_error_or_changes_nothing(tmp_path: Path) -> None:
    whole = (DATA / "lrn/model-5000.index").read_bytes()
    expected, refusals = Bundle(DATA / "lrn/model-5000").shapes, 0
    for seed in range(300):
        rng, index = random.Random(seed), bytearray(whole)
        for _ in range(rng.choice([1, 1, 8])):
            index[rng.randrange(len(index))] = rng.randrange(256)
        path = write(tmp_path, bytes(index), b"")
        try:
            assert Bundle(path).shapes == expected
        except CheckpointError:
            refusals += 1
    assert refusals > 200


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ({"size": 23}, "size of its shape"),
        ({"checksum": 1}, "wrong checksum"),
        ({"dtype": 9}, "type 9, not floats"),
        ({"offset": 1}, "too short"),
        ({"shard": 1}, "size of its shape"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(
    tmp_path: Path, own: dict[str, Any], problem: str
) -> None:
    index = table({b"": header(), b"a": entry(ONES, **{"offset": 0} | own)})
    with pytest.raises(CheckpointError, match=problem):
        Bundle(write(tmp_path, index)).tensor("a")


def test_a_shape_larger_than_the_file_takes_no_memory(tmp_path: Path) -> None:
    dims = message(2, number(1, 1 << 40)) + message(2, number(1, 1 << 20))
    own = number(1, 1) + message(2, dims) + number(5, 1 << 62) + fixed(6, 0)
    with pytest.raises(CheckpointError, match="too short"):
        Bundle(write(tmp_path, table({b"": header(), b"a": own}))).tensor("a")


def test_the_number_of_variables_has_a_limit(tmp_path: Path) -> None:
    names = {str(i).encode(): b"" for i in range(100_000)}
    with pytest.raises(CheckpointError, match="too many keys"):
        Bundle(write(tmp_path, table({b"": header(), **names})))
    del names[b"7"]
    assert len(Bundle(write(tmp_path, table({b"": header(), **names}))).shapes) == 99_999


def test_a_partitioned_variable_is_refused(tmp_path: Path) -> None:
    index = table({b"": header(), b"a": entry(ONES, 0) + message(7, b"")})
    with pytest.raises(CheckpointError, match="partitioned"):
        Bundle(write(tmp_path, index)).tensor("a")


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    save_bundle(tmp_path / "model", {"a": ONES})
    (tmp_path / FILE).unlink()
    with pytest.raises(CheckpointError, match=f"{FILE}, which holds a: No such file"):
        Bundle(tmp_path / "model").tensor("a")
    with pytest.raises(CheckpointError, match=r"other\.index: No such file"):
        Bundle(tmp_path / "other")
