"""Inputs are cut without a loss, and their tensors fit a model's metadata."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sruserve.check.errors import CheckError
from sruserve.check.protocols.tensors import model_inputs, values_of
from sruserve.check.samples import TEXTS, Sample

PLACES = st.lists(st.floats(0, 1), max_size=4)


@given(st.text(min_size=1), PLACES)
def test_chunks_are_the_whole_and_none_is_empty(text: str, places: list[float]) -> None:
    chunks = Sample({"a": text, "b": [text]}, frozenset({"a"})).cut(places)
    assert "".join(chunk.values["a"] for chunk in chunks) == text
    assert all(chunk.values["a"] for chunk in chunks)
    assert all(chunk.values["b"] == [text] for chunk in chunks)


@given(st.integers(1, 30), PLACES)
def test_a_generation_in_chunks_has_all_tokens_and_one_prompt(
    tokens: int, places: list[float]
) -> None:
    sample = Sample({"prompt": "To"}, frozenset({"prompt"}), {"max_tokens": tokens, "seed": 1})
    first, *others = sample.cut_generation(places)
    assert sum(chunk.options["max_tokens"] for chunk in (first, *others)) == tokens
    assert (first.values["prompt"], first.options["seed"]) == ("To", 1)
    assert all(chunk.values["prompt"] == "" and "seed" not in chunk.options for chunk in others)


def test_the_texts_differ_in_length_and_contain_what_every_model_reads() -> None:
    assert len({len(text) for text in TEXTS}) == len(TEXTS) == 8
    assert set("".join(TEXTS)) <= set("abcdefghijklmnopqrstuvwxyzNHTW ,.;?")


@pytest.mark.parametrize(
    ("shape", "config", "batch", "steps"),
    [
        ([-1, 4], {"max_batch_size": 0}, [], [3]),
        ([-1, 4], {"max_batch_size": 8}, [1], []),
        ([-1, -1, 4], {"max_batch_size": 8}, [1], [3]),
        (["-1", "4"], {}, [1], []),  # as some servers write sizes
        ([2, 4], {}, [], []),
    ],
)
def test_a_tensor_has_the_shape_of_the_metadata(
    shape: list[Any], config: dict[str, int], batch: list[int], steps: list[int]
) -> None:
    metadata = {"inputs": [{"name": "x", "datatype": "FP32", "shape": shape}]}
    (each,) = model_inputs(metadata, config)
    tensor = each.tensor([each.value("three short words", random.Random(0))])
    assert tensor["shape"] == [*batch, *steps, *([2, 4] if shape == [2, 4] else [4])]
    count = 1
    for size in tensor["shape"]:
        count *= size
    assert len(tensor["data"]) == count
    assert all(isinstance(value, float) and abs(value) <= 1 for value in tensor["data"])


def test_optional_inputs_are_left_out_and_all_others_get_values() -> None:
    inputs = [
        {"name": "ids", "datatype": "INT64", "shape": [-1, -1]},
        {"name": "text", "datatype": "BYTES", "shape": [-1, 1]},
        {"name": "flag", "datatype": "BOOL", "shape": [-1, 1]},
        {"name": "extra", "datatype": "FP16", "shape": [-1, 1]},
    ]
    config = {"max_batch_size": 2, "input": [{"name": "extra", "optional": True}]}
    chosen = model_inputs({"inputs": inputs}, config)
    tensors = [each.tensor([each.value("two words", random.Random(0))]) for each in chosen]
    assert [tensor["shape"] for tensor in tensors] == [[1, 2], [1, 1], [1, 1]]
    assert tensors[1]["data"] == ["two words"]
    assert all(isinstance(value, int) and 0 < value < 10 for value in tensors[0]["data"])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "x", "datatype": "FP16", "shape": [1]}, "FP16"),
        ({"name": "x", "datatype": "FP32", "shape": ["many"]}, "invalid shape"),
        ({"name": "x", "datatype": "FP32", "shape": [float("inf")]}, "invalid shape"),
        ({"name": "x", "datatype": "FP32", "shape": [9] * 1_000_000}, "1000000 dimensions"),
        ({"name": ["x"], "datatype": "FP32", "shape": [1]}, "no str 'name'"),
        ({"name": "x", "datatype": "FP32"}, "no list 'shape'"),
    ],
)
def test_inputs_that_json_cannot_carry_are_named(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckError, match=message):
        model_inputs({"inputs": [entry]}, {"max_batch_size": 0})


def test_an_input_that_would_fill_the_memory_is_refused() -> None:
    metadata = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1 << 20, 1 << 20]}]}
    (each,) = model_inputs(metadata, {"max_batch_size": 0})
    with pytest.raises(CheckError, match="too large"):
        each.value("a", random.Random(0))


@pytest.mark.parametrize(
    "inputs",
    [
        [{"name": "x", "datatype": "BYTES", "shape": [-1, 1 << 40]}],
        [{"name": f"x{i}", "datatype": "FP32", "shape": [1, 1 << 19]} for i in range(3)],
    ],
    ids=["copies of a text", "many inputs"],
)
def test_inputs_that_would_fill_the_memory_together_are_refused(
    inputs: list[dict[str, Any]],
) -> None:
    chosen = model_inputs({"inputs": inputs}, {"max_batch_size": 0})
    with pytest.raises(CheckError, match="over 1048576 elements"):
        values_of(chosen, "two words", random.Random(0))
