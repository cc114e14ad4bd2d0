"""Masks of padding are noted; a model with a mask of its author's own is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.model.importers.files import imported, refused
from tests.model.importers.keras_files import Layer, write_archive
from tests.model.importers.test_keras_layers import tensor

RANDOM = np.random.default_rng(6)
LABELS = {"labels": ["no", "yes"]}


def node(*arguments: Any, **named: Any) -> dict[str, Any]:
    return {"inbound_nodes": [{"args": list(arguments), "kwargs": named}]}


def numbers(*shape: int) -> Any:
    return RANDOM.normal(size=shape).astype(np.float32)


def write(path: Path, first: list[Layer], reads: str, **named: Any) -> Path:
    """Write a classifier whose recurrent layer reads a layer, with more arguments."""
    config = {"units": 3, "activation": "tanh", "recurrent_activation": "sigmoid"}
    arrays = [numbers(4, 12), numbers(3, 12), numbers(12)]
    dense = {"units": 2, "activation": "softmax"}
    layers = [
        *first,
        Layer("LSTM", config, arrays, name="lstm", extra=node(tensor(reads), **named)),
        Layer(
            "Dense", dense, [numbers(3, 2), numbers(2)], name="dense", extra=node(tensor("lstm"))
        ),
    ]
    described = [{**layer.entry(), "name": layer.name} for layer in layers]
    ends = {"input_layers": [["x", 0, 0]], "output_layers": [["dense", 0, 0]]}
    model = {"class_name": "Functional", "config": {"layers": described, **ends}}
    return write_archive(path, layers, model)


def ids_and_embedding(mask_zero: bool) -> list[Layer]:
    config = {"input_dim": 9, "output_dim": 4, "mask_zero": mask_zero}
    return [
        Layer("InputLayer", {"batch_shape": [None, None]}, name="x", extra={"inbound_nodes": []}),
        Layer("Embedding", config, [numbers(9, 4)], name="table", extra=node(tensor("x"))),
    ]


def features_and_masking(value: float) -> list[Layer]:
    shape = {"batch_shape": [None, None, 4]}
    config = {"mask_value": value}
    return [
        Layer("InputLayer", shape, name="x", extra={"inbound_nodes": []}),
        Layer("Masking", config, name="masking", extra=node(tensor("x"))),
    ]


def compares(source: str, number: float) -> Layer:
    module = {"module": "keras.src.ops.numpy"}
    return Layer("NotEqual", name="own", extra=node(tensor(source), number) | module)


@pytest.mark.parametrize(
    ("mask_zero", "source", "number"),
    [(False, "x", 0), (True, "x", 5), (False, "x", 5), (True, "table", 0)],
)
def test_a_mask_of_the_authors_own_is_refused(
    tmp_path: Path, mask_zero: bool, source: str, number: int
) -> None:
    first = [*ids_and_embedding(mask_zero), compares(source, number)]
    path = write(tmp_path / "m.keras", first, "table", mask=tensor("own"))
    problem = refused(tmp_path, path, "classify", **LABELS)
    assert "layer own (NotEqual) computes a mask that neither mask_zero nor" in problem


def test_ids_that_are_a_mask_themselves_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.keras", ids_and_embedding(True), "table", mask=tensor("x"))
    assert "layer lstm (LSTM) reads a mask" in refused(tmp_path, path, "classify", **LABELS)


def test_the_mask_of_an_embedding_is_accepted(tmp_path: Path) -> None:
    first = [*ids_and_embedding(True), compares("x", 0)]
    path = write(tmp_path / "m.keras", first, "table", mask=tensor("own"))
    assert imported(tmp_path, path, "classify", **LABELS).config.vocab_size == 9


@pytest.mark.parametrize(("compared", "accepted"), [(-1.0, True), (0.0, False)])
def test_the_mask_of_a_masking_layer_is_accepted(
    tmp_path: Path, compared: float, accepted: bool
) -> None:
    joins = Layer("Any", {"axis": [-1]}, name="all", extra=node(tensor("own")))
    first = [*features_and_masking(-1.0), compares("x", compared), joins]
    path = write(tmp_path / "m.keras", first, "masking", mask=tensor("all"))
    if accepted:
        assert imported(tmp_path, path, "classify", **LABELS).config.width == 4
    else:
        assert "layer own (NotEqual)" in refused(tmp_path, path, "classify", **LABELS)


def test_a_layer_that_is_called_for_training_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.keras", ids_and_embedding(False), "table", training=True)
    problem = refused(tmp_path, path, "classify", **LABELS)
    assert "layer lstm (LSTM) is called with training=True" in problem
