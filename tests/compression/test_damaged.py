"""A damaged, cut, foreign or hostile file is refused with a reason, and in bounded memory."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sruserve.compression import decompress
from sruserve.compression.container import MAX_BLOCK_BYTES, Block, Reader, checksum, write_block
from sruserve.compression.errors import (
    CompressionError,
    DamagedFileError,
    OtherBuildError,
    TooLongError,
)
from sruserve.compression.header import MAGIC, describe, read_header, write_header
from sruserve.model.folder import Model
from tests.compression.files import compressed, decompressed
from tests.support import PRINTABLE, random_model

TEXT = b"To be, or not to be: that is the question. " * 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return random_model(tmp_path_factory.mktemp("models") / "m")


@pytest.fixture(scope="module")
def file(model: Model) -> bytes:
    return compressed(model, TEXT, 128)


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_flipped_bit_gives_another_file(
    model: Model, file: bytes, place: float, bit: int
) -> None:
    data = bytearray(file)
    data[int(place * len(file))] ^= 1 << bit
    with pytest.raises(CompressionError):
        decompressed(model, bytes(data))


@given(place=st.floats(0, 1, exclude_max=True))
def test_a_file_that_ends_too_early_is_refused(model: Model, file: bytes, place: float) -> None:
    with pytest.raises(DamagedFileError, match=r"ends too early|no file of"):
        decompressed(model, file[: int(place * len(file))])


def test_a_file_that_states_too_much_is_refused_before_any_of_it_is_decoded(
    model: Model, file: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert decompressed(model, file, max_bytes=len(TEXT)) == TEXT
    monkeypatch.setattr(decompress, "_decoded", None)
    with pytest.raises(TooLongError, match="an original of 516, and it may have 515: if"):
        decompressed(model, file, max_bytes=len(TEXT) - 1)
    head = io.BytesIO()
    write_header(head, describe(model))
    block = io.BytesIO()
    write_block(block, Block(MAX_BLOCK_BYTES, b"", bytes(4), bytes(4)))
    with pytest.raises(TooLongError, match="if you trust the file, allow more with --max-bytes"):
        decompressed(model, head.getvalue() + block.getvalue() * 17 + b"\0")


def test_progress_is_reported_while_blocks_are_decoded(
    tmp_path: Path,
) -> None:
    model = random_model(tmp_path / "m", vocabulary=PRINTABLE)
    # ids, although the model is random
    file, advances = compressed(model, TEXT, 128, foreign_bits=100.0), list[int]()
    source = Reader(io.BytesIO(file))
    header, begin = read_header(source), source.bytes
    decompress.decompress(
        source, io.BytesIO(), header, model, advance=advances.append, report_steps=8
    )
    assert len(advances) >= 128 // 8
    assert begin + sum(advances) == len(file) - 32  # but for the digest after all blocks


def test_bytes_after_the_end_are_refused(model: Model, file: bytes) -> None:
    with pytest.raises(DamagedFileError, match="bytes follow its end"):
        decompressed(model, file + b"\0")


def test_blocks_in_another_order_are_refused(model: Model) -> None:
    blocks = [compressed(model, text)[_head_size(model) : -33] for text in (b"to be", b"or not")]
    head, end = _head(model), compressed(model, b"to beor not")[-33:]
    assert decompressed(model, head + b"".join(blocks) + end) == b"to beor not"
    with pytest.raises(DamagedFileError, match="another SHA-256"):
        decompressed(model, head + b"".join(reversed(blocks)) + end)


@given(data=st.binary(max_size=300))
def test_what_follows_a_head_is_never_more_than_refused(model: Model, data: bytes) -> None:
    with pytest.raises(DamagedFileError):
        decompressed(model, _head(model) + data)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "ends too early"),
        (b"PK\3\4 something else", "no file of `sruserve compress`"),
        (MAGIC[:-1] + b"\x02", "version 2 of the format"),
        (MAGIC + b"\xff\xff", "the limit is 4,096"),
    ],
    ids=["empty", "zip", "version", "long"],
)
def test_a_head_that_is_none_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(DamagedFileError, match=reason):
        read_header(Reader(io.BytesIO(content)))


@pytest.mark.parametrize("change", [{}, {"model": 7}, {"dtype": "int7"}], ids=str)
def test_a_head_without_its_fields_is_refused(model: Model, change: dict[str, Any]) -> None:
    fields = {} if not change else {**json.loads(_head(model)[10:-4]), **change}
    content = json.dumps(fields).encode()
    content = len(content).to_bytes(2) + content
    with pytest.raises(DamagedFileError, match="its header is incomplete"):
        read_header(Reader(io.BytesIO(MAGIC + content + checksum(content))))


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("digest", "ab" * 32, "name the folder of the file's model"),
        ("dtype", "bfloat16", "set --dtype"),
        ("kernel", "c-avx9000", "made with the kernel c-avx9000, and this is c-"),
        ("build", "sruserve 0.0.1, torch 1.0", "made with the build sruserve 0.0.1, torch 1.0"),
        ("device", "NVIDIA Z1", "made with the device NVIDIA Z1, and this is cpu"),
    ],
)
def test_a_file_of_another_model_or_build_is_refused_by_name(
    model: Model, file: bytes, field: str, value: str, reason: str
) -> None:
    target, changed = io.BytesIO(), dict[str, Any]({field: value})
    write_header(target, replace(describe(model), **changed))
    other = target.getvalue() + file[_head_size(model) :]
    with pytest.raises(OtherBuildError, match=reason):
        decompressed(model, other)
    if field in ("digest", "dtype"):
        with pytest.raises(OtherBuildError, match=reason):
            decompressed(model, other, any_build=True)
    else:
        assert decompressed(model, other, any_build=True) == TEXT


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (b"\xff" * 20, "the size of a block is"),
        (b"\x81\x80\x04", "the size of a block is 65,537 or more"),
        (b"\x05\xff\xff\xff\x7f", "the length of a block's code"),
        (b"\x05\x7f", "the length of a block's code is 127 or more; the limit is 56"),
        (b"\x80" * 40, "the size of a block"),
    ],
    ids=["endless", "large", "long code", "longer code", "zeros"],
)
def test_hostile_lengths_are_refused_before_anything_is_read(
    model: Model, block: bytes, reason: str
) -> None:
    with pytest.raises(DamagedFileError, match=reason):
        decompressed(model, _head(model) + block + b"\0" * 100)


def test_an_id_without_bytes_ends_a_hostile_block(tmp_path: Path) -> None:
    model = random_model(tmp_path / "m", vocab_size=1000)  # ids from 256 on are no bytes
    for code in (b"\x20", b"\x70" * 30, b"\x3f" * 20):
        block = b"\x80\x80\x04" + bytes([len(code)]) + code + b"\0" * 8
        with pytest.raises(DamagedFileError):
            decompressed(model, _head(model) + block + b"\0" * 33)


def _head(model: Model) -> bytes:
    target = io.BytesIO()
    write_header(target, describe(model))
    return target.getvalue()


def _head_size(model: Model) -> int:
    return len(_head(model))
