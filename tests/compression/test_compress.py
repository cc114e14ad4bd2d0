"""Any file comes back, from any language model, in memory that does not depend on its size."""

import io
import tracemalloc
from collections.abc import Iterator
from math import inf, log
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors
from torch import Tensor

from sruserve.compression.compress import compress
from sruserve.compression.container import Reader
from sruserve.compression.decompress import decompress
from sruserve.compression.errors import DamagedFileError, DifferentBitsError, UnfitModelError
from sruserve.compression.header import read_header
from sruserve.export.quantize.quantize import quantize
from sruserve.kernels import RaggedBatch, single
from sruserve.model.folder import Model, load_model
from sruserve.model.heads.config import HeadConfig
from sruserve.model.network import Network
from tests.compression.files import compressed, decompressed
from tests.model.text.trained_tokenizers import SENTENCES, trained
from tests.support import PRINTABLE, random_model

ROOT = Path(__file__).parents[2]
TAIL = (ROOT / "tests/data/shakespeare.tail").read_bytes()
TEXT = "\n".join(SENTENCES).encode()


@pytest.fixture(scope="module")
def shakespeare() -> Model:
    return load_model(ROOT / "sruserve/demo/shakespeare")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return random_model(tmp_path_factory.mktemp("models") / "small")


def by_model(model: Model, data: bytes, *block_bytes: int, **options: Any) -> bytes:
    """A file that a model has compressed, although counts of bytes may do it better."""
    return compressed(model, data, *block_bytes, foreign_bits=inf, **options)


@given(data=st.binary(max_size=600) | st.text(max_size=300).map(str.encode))
def test_any_bytes_are_restored(small: Model, data: bytes) -> None:
    assert decompressed(small, by_model(small, data, 64)) == data


@pytest.mark.parametrize("kind", ["byte level", "metaspace first", "llama", "word piece", "ids"])
def test_files_are_restored_with_any_vocabulary(tmp_path: Path, kind: str) -> None:
    described: dict[str, Any] = {"vocab_size": 300}
    if kind != "ids":
        content = trained(kind).to_str().encode()
        described = {"vocabulary": content, "vocab_size": trained(kind).get_vocab_size()}
    model = random_model(tmp_path / "m", **described)
    data = TEXT + bytes(range(256)) + "日本 é\r\n".encode() * 40
    assert decompressed(model, by_model(model, data, 256)) == data


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("sru", {"layer_norm": True, "projection_size": 8}),
        ("srupp", {"proj_size": 8, "window": 5, "num_heads": 2}),
        ("lrn", {}),
        ("qrnn", {"window": 2}),
        ("lstm", {}),
        ("gru", {}),
    ],
)
def test_files_are_restored_from_other_families(
    tmp_path: Path, family: str, options: dict[str, Any]
) -> None:
    model = random_model(tmp_path / "m", model_type=family, **options)
    data = TAIL[:3000]
    assert decompressed(model, by_model(model, data, 200)) == data


@pytest.mark.parametrize(
    "head",
    [
        {"size": 16, "cutoffs": (20, 50)},
        {"experts": 3, "latent_size": 7},
        {"experts": 4, "layers": ({"type": "layer_norm"},)},
        {"bias": False},
    ],
    ids=["adaptive", "mixture", "layers", "no bias"],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_files_are_restored_from_other_heads_and_dtypes(
    tmp_path: Path, head: dict[str, Any], dtype: str
) -> None:
    model = random_model(tmp_path / "m", dtype=dtype, head=HeadConfig(**head))
    data = TAIL[:2000]
    assert decompressed(model, by_model(model, data, 150)) == data


def test_files_are_restored_from_int8_weights(tmp_path: Path) -> None:
    _, model = quantize(ROOT / "sruserve/demo/shakespeare", tmp_path / "small", "int8")
    data = TAIL[:2000]
    file = by_model(model, data, 200)
    assert len(file) < len(data) / 2
    assert decompressed(model, file) == data


def test_a_block_begins_with_the_ids_that_the_tokenizer_puts_before_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.from_str(trained("llama").to_str())
    begin = [("<s>", tokenizer.token_to_id("<s>"))]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> <s> $A", special_tokens=begin
    )
    model = random_model(
        tmp_path / "m",
        vocabulary=tokenizer.to_str().encode(),
        vocab_size=tokenizer.get_vocab_size(),
    )
    assert model.codec is not None
    assert model.codec.frame is not None
    assert len(model.codec.frame.prefix) == 2
    read, own = list[list[int]](), model.network.hidden

    def noted(inputs: Tensor, *rest: Any) -> Tensor:
        read.append(inputs.tolist())
        return own(inputs, *rest)

    monkeypatch.setattr(model.network, "hidden", noted)
    file = by_model(model, TEXT, 300)
    assert all(ids[:2] == [begin[0][1]] * 2 for ids in read)
    assert decompressed(model, file) == TEXT


def test_a_text_takes_as_many_bits_as_the_model_scores_it_with(shakespeare: Model) -> None:
    data, network = TAIL[:8000], shakespeare.network
    assert shakespeare.codec is not None
    ids = torch.from_numpy(shakespeare.codec.encode(data.decode())[0])
    hidden = network.hidden(ids[:-1], single(network.layout.allocate(1), len(ids) - 1))
    scores = network.log_probs(network.logits(hidden)).gather(1, ids[1:, None])
    bits = float(-scores.double().sum()) / log(2)
    more = 8 * len(by_model(shakespeare, data, 1 << 16)) - bits
    assert 0 < more < 8 * 330  # the head, the end and the first character


def test_blocks_and_lanes_of_any_number_give_the_same_file(
    shakespeare: Model,
) -> None:
    data = TAIL[:700]
    file = by_model(shakespeare, data, 128)
    for lanes in (1, 3, 64):
        assert decompressed(shakespeare, file, max_lanes=lanes) == data
    assert by_model(shakespeare, data, 128, pass_steps=7) == file


def test_random_bytes_grow_by_a_twentieth_at_most(
    small: Model,
) -> None:
    data = bytes(torch.randint(256, (20_000,), generator=torch.Generator().manual_seed(0)).tolist())
    assert len(compressed(small, data)) < 1.05 * len(data) + 500


def test_one_score_that_differs_in_its_last_bit_is_noticed(
    small: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = TAIL[:400].replace(b"\n", b" ")
    file = by_model(small, data)
    own, calls = Network.logits, []

    def inexact(self: Network, hidden: Tensor) -> Tensor:
        scores = own(self, hidden).clone()
        calls.append(len(scores))
        if len(calls) == 100:  # of one step, that of one id
            scores[0, 5] = torch.nextafter(scores[0, 5], scores.new_tensor(1e9))
        return scores

    monkeypatch.setattr(Network, "logits", inexact)
    with pytest.raises(DifferentBitsError, match="other bits of its scores"):
        decompressed(small, file)
    calls.clear()
    assert decompressed(small, file, any_build=True) == data


def test_a_network_whose_results_depend_on_the_split_cannot_decompress(
    small: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = by_model(small, TAIL[:2000])
    own = Network.hidden

    def inexact(
        self: Network, inputs: Tensor, batch: RaggedBatch, output_rows: Tensor | None = None
    ) -> Tensor:
        hidden = own(self, inputs, batch, output_rows)
        return hidden * 1.001 if len(inputs) == 1 else hidden

    monkeypatch.setattr(Network, "hidden", inexact)
    with pytest.raises(DamagedFileError, match="damaged"):
        decompressed(small, file, any_build=True)


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        ({"task": "classify", "vocabulary": PRINTABLE}, "has the task classify"),
        ({"fast": True}, "computes to rounding"),
    ],
    ids=["task", "fast"],
)
def test_a_model_that_cannot_compress_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, described: dict[str, Any], reason: str
) -> None:
    task = described.pop("task", "generate")
    if described.pop("fast", False):
        monkeypatch.setattr(Network, "exactness", "to rounding, not bit for bit")
    model = random_model(tmp_path / "m", task, **described)
    with pytest.raises(UnfitModelError, match=reason):
        compress(io.BytesIO(b"text"), io.BytesIO(), model)


class Endless(io.RawIOBase):
    """A file of many bytes that nobody holds."""

    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, size: int = -1) -> bytes:
        size = min(size, self._left)
        self._left -= size
        return (b"to be " * (size // 6 + 1))[:size]


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def fill_free_lists() -> None:
    """Free as many tuples as Python keeps for new ones, so that later ones count nothing."""
    _ = [tuple(range(size)) for size in range(1, 21) for _ in range(2000)]


def test_memory_does_not_grow_with_the_file(small: Model, tmp_path: Path, traced: None) -> None:
    def peak(size: int) -> int:
        fill_free_lists()
        with (tmp_path / "file").open("wb") as target:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            endless: Any = Endless(size)
            compress(endless, target, small, 512, foreign_bits=inf)
        with (tmp_path / "file").open("rb") as source, (tmp_path / "back").open("wb") as target:
            reader = Reader(source)
            decompress(reader, target, read_header(reader), small, max_lanes=4)
        assert (tmp_path / "back").stat().st_size == size
        return tracemalloc.get_traced_memory()[1] - before

    peak(2000)  # fills what is filled once
    short = peak(2000)
    # other threads of the process may allocate meanwhile, but what a file takes, it takes each time
    assert any(peak(20_000) < short + 8000 for _ in range(5))
