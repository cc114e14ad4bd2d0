"""Models of Keras as its documentation defines them, and what cannot be served."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sruserve.model.importers.keras import read
from tests.model.importers import keras_formulas
from tests.model.importers.files import agree, answers, imported, refused
from tests.model.importers.keras_files import Array, Layer, description, write_archive, write_legacy


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """These files are whole: the process that tries each file first is of `test_keras_files.py`."""
    monkeypatch.setattr(read, "try_to_read", lambda path: None)


class Weights:
    """Random layers."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def array(self, *shape: int) -> Array:
        return self.random.normal(0, 0.5, shape).astype(np.float32)

    def inputs(self, width: int | None) -> Layer:
        shape = [None, None] if width is None else [None, None, width]
        return Layer("InputLayer", {"batch_shape": shape})

    def dense(self, width: int, units: int, activation: Any = "linear") -> Layer:
        config = {"units": units, "activation": activation, "use_bias": True}
        return Layer("Dense", config, [self.array(width, units), self.array(units)])

    def each(self, width: int, units: int) -> Layer:
        inner = self.dense(width, units, "tanh")
        inner.name = "dense_inner"
        return Layer("TimeDistributed", {"layer": inner.entry()}, inner.arrays)

    def recurrent(self, kind: str, width: int, units: int, sequences: bool, **more: Any) -> Layer:
        config = {"units": units, "return_sequences": sequences, "use_bias": True, **more}
        config |= {"activation": "tanh"}
        if kind != "SimpleRNN":
            config |= {"recurrent_activation": "sigmoid"}
        rows = {"LSTM": 4, "GRU": 3, "SimpleRNN": 1}[kind] * units
        bias = (2, rows) if more.get("reset_after") else (rows,)
        arrays = [self.array(width, rows), self.array(units, rows), self.array(*bias)]
        return Layer(kind, config, arrays)

    def both(self, kind: str, width: int, units: int, sequences: bool, **more: Any) -> Layer:
        merge = more.pop("merge_mode", "concat")
        forward = self.recurrent(kind, width, units, sequences, **more)
        backward = self.recurrent(kind, width, units, sequences, **more)
        forward.name, backward.name = "forward_it", "backward_it"
        backward.config["go_backwards"] = True
        config = {
            "layer": forward.entry(), "backward_layer": backward.entry(), "merge_mode": merge
        }  # fmt: skip
        return Layer("Bidirectional", config, forward.arrays, backward.arrays)

    def batch_norm(self, width: int) -> Layer:
        arrays = [self.array(width) for _ in range(4)]
        arrays[3] = np.abs(arrays[3])
        return Layer("BatchNormalization", {"epsilon": 0.001, "axis": -1}, arrays)

    def layer_norm(self, width: int) -> Layer:
        arrays = [self.array(width), self.array(width)]
        return Layer("LayerNormalization", {"epsilon": 0.001, "axis": [-1]}, arrays)

    def model(self) -> tuple[list[Layer], str]:
        """A random Sequential model, and its task."""
        pick = self.random
        ids = bool(pick.integers(2))
        width = int(pick.integers(2, 6))
        layers = [self.inputs(None if ids else width)]
        if ids:
            layers.append(Layer("Embedding", {"mask_zero": False}, [self.array(20, width)]))
        elif pick.integers(2):
            layers += [self.batch_norm(width), self.dense(width, 4, "relu")]
            width = 4
        kind = str(pick.choice(["LSTM", "GRU", "SimpleRNN"]))
        more = {"reset_after": bool(pick.integers(2))} if kind == "GRU" else {}
        count, last = int(pick.integers(1, 4)), str(pick.choice(["steps", "last", "mean", "max"]))
        for number in range(count):
            sequences = number < count - 1 or last != "last"
            units = int(pick.integers(2, 6))
            if pick.integers(2):
                merge = str(pick.choice(["concat", "concat", "sum", "ave"]))
                merge = "concat" if last == "max" and number == count - 1 else merge
                layers.append(self.both(kind, width, units, sequences, merge_mode=merge, **more))
                width = 2 * units if merge == "concat" else units
            else:
                layers.append(self.recurrent(kind, width, units, sequences, **more))
                width = units
            if number < count - 1 and pick.integers(2):
                layers += [Layer("Dropout", {"rate": 0.5}), self.batch_norm(width)]
        if last == "mean":
            layers.append(Layer("GlobalAveragePooling1D", {}))
        elif last == "max":
            layers.append(Layer("GlobalMaxPooling1D", {}))
        if pick.integers(2):
            layers += [self.layer_norm(width), self.batch_norm(width)]
        if last == "steps" and pick.integers(2):
            layers.append(self.each(width, 3))
            width = 3
        layers.append(self.dense(width, 3, str(pick.choice(["softmax", "sigmoid"]))))
        return layers, "tag" if last == "steps" else "classify"


@pytest.mark.parametrize("write", [write_archive, write_legacy], ids=["archive", "legacy"])
@pytest.mark.parametrize("seed", range(20))
def test_a_model_answers_as_keras_documents(tmp_path: Path, seed: int, write: Any) -> None:
    weights = Weights(seed)
    layers, task = weights.model()
    file = write(tmp_path / ("m.keras" if write is write_archive else "m.h5"), layers)
    model = imported(tmp_path, file, task)
    x = weights.random.integers(0, 20, 9) if layers[1].kind == "Embedding" else None
    if x is None:
        x = weights.array(9, layers[0].config["batch_shape"][-1])
    theirs = torch.from_numpy(keras_formulas.answer(layers, x))
    agree(answers(model, torch.from_numpy(x)), theirs.float())


WEIGHTS = Weights(3)
LSTM = WEIGHTS.recurrent("LSTM", 3, 4, False)
STEPS = WEIGHTS.recurrent("LSTM", 3, 4, True)
START = WEIGHTS.inputs(3)


def changed(layer: Layer, **config: Any) -> Layer:
    return Layer(layer.kind, {**layer.config, **config}, layer.arrays, layer.backward)


CUSTOM = {"module": "builtins", "class_name": "function", "config": "f", "registered_name": "f"}
REFUSED: dict[str, tuple[list[Layer], str]] = {
    "lambda": ([Layer("Lambda", {"function": "evil"}), LSTM], "Lambda) holds code"),
    "custom": (
        [Layer("LSTM", LSTM.config, LSTM.arrays, extra={"module": "mine"})],
        "LSTM) is a custom object",
    ),
    "registered": (
        [Layer("LSTM", LSTM.config, LSTM.arrays, extra={"registered_name": "Mine>LSTM"})],
        "LSTM) is a custom object",
    ),
    "function": ([changed(LSTM, activation=CUSTOM)], "has a custom activation"),
    "relu": ([changed(LSTM, activation="relu")], "has the activation relu"),
    "hard": ([changed(LSTM, recurrent_activation="hard_sigmoid")], "hard_sigmoid"),
    "backwards": ([changed(LSTM, go_backwards=True)], "runs backward in time"),
    "state": ([changed(LSTM, return_state=True)], "has return_state"),
    "units": ([changed(LSTM, units=5)], "do not fit its units"),
    "flatten": ([STEPS, Layer("Flatten", {})], "Flatten) cannot be served"),
    "kinds": (
        [STEPS, WEIGHTS.recurrent("GRU", 4, 4, False, reset_after=True)],
        "recurrent layers of two kinds (lstm, gru)",
    ),
    "norm": (
        [STEPS, WEIGHTS.layer_norm(4), WEIGHTS.recurrent("LSTM", 4, 4, False)],
        "is between recurrent layers",
    ),
    "max": (
        [STEPS, WEIGHTS.dense(4, 2), Layer("GlobalMaxPooling1D", {})],
        "only pooling of the recurrent layers' own outputs",
    ),
    "mul": (
        [WEIGHTS.both("LSTM", 3, 4, False, merge_mode="mul")],
        "has the merge_mode mul; served are concat, sum and ave",
    ),
    "none": ([WEIGHTS.dense(3, 2)], "has no LSTM, GRU or RNN layer"),
    "axis": ([STEPS, changed(WEIGHTS.batch_norm(4), axis=1), LSTM], "is over axis 1"),
    "activation": (
        [LSTM, WEIGHTS.dense(4, 2, "mish")],
        "has the activation mish, which cannot be served; use one of relu,",
    ),
    "softmax": (
        [LSTM, WEIGHTS.dense(4, 2, "softmax"), WEIGHTS.dense(2, 2)],
        "(softmax) cannot be there",
    ),
    "width": ([LSTM, WEIGHTS.dense(5, 2)], "reads 5 columns, but there are 4"),
    "rank": ([LSTM, WEIGHTS.recurrent("LSTM", 4, 4, False)], "returns only one row"),
    "peepholes": ([Layer("RNN", {"cell": {"class_name": "PeepholeLSTMCell"}})], "(RNN) cannot be"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_cannot_be_served_are_refused_by_name(tmp_path: Path, name: str) -> None:
    layers, problem = REFUSED[name]
    layers = [replace(layer) for layer in layers]
    message = refused(tmp_path, write_archive(tmp_path / "m.keras", [START, *layers]), "classify")
    assert problem in message


def tensor(name: str, output: int = 0) -> dict[str, Any]:
    config = {"shape": [None, 3], "dtype": "float32", "keras_history": [name, 0, output]}
    return {"class_name": "__keras_tensor__", "config": config}


def functional(layers: list[Layer], sources: dict[str, list[Any]], inputs: Any = None) -> Any:
    """A functional model; sources: what each layer reads."""
    model = description(layers)
    for entry in model["config"]["layers"]:
        name = entry["config"]["name"]
        entry["name"] = name
        entry["inbound_nodes"] = [{"args": sources[name], "kwargs": {}}] if sources[name] else []
    config = model["config"] | {
        "input_layers": inputs or [layers[0].name, 0, 0],
        "output_layers": [[layers[-1].name, 0, 0]],
    }
    return {"class_name": "Functional", "config": config}


@pytest.mark.parametrize(
    ("sources", "inputs", "problem"),
    [
        (
            {"b": [tensor("a")], "c": [[tensor("b"), tensor("a")]]},
            None,
            "a model without branches and states",
        ),
        ({"b": [tensor("a")], "c": [tensor("b", 1)]}, None, "output 1 of b"),
        ({"b": [tensor("a")], "c": [tensor("a")]}, None, "layer b (LSTM) is on a branch"),
        ({"b": [tensor("c")], "c": [tensor("b")]}, None, "is on a branch"),
        ({"b": [tensor("a")], "c": [tensor("b")]}, [["a", 0, 0], ["d", 0, 0]], "one input"),
    ],
)
def test_graphs_that_are_no_chain_are_refused(
    tmp_path: Path, sources: dict[str, list[Any]], inputs: Any, problem: str
) -> None:
    layers = [changed(START), changed(LSTM), WEIGHTS.dense(4, 2)]
    for layer, name in zip(layers, "abc", strict=True):
        layer.name = name
    model = functional(layers, {"a": [], **sources}, inputs)
    file = write_archive(tmp_path / "m.keras", layers, model)
    assert problem in refused(tmp_path, file, "classify")


IDS = torch.tensor([4, 0, 2, 2, 1])
MEAN, MAX = "GlobalAveragePooling1D", "GlobalMaxPooling1D"


def joining(kind: str, *inputs: list[Layer], after: list[Layer]) -> tuple[list[Layer], Any]:
    """A functional model: the first list's layers, then the others beside each other, joined."""
    chain, *beside = inputs
    layers = [*chain, *(layer for each in beside for layer in each), Layer(kind, {}), *after]
    for layer in layers:
        layer.name = ""
    description(layers)
    sources: dict[str, list[Any]] = {chain[0].name: []}
    for one, other in pairwise(chain):
        sources[other.name] = [tensor(one.name)]
    for (layer,) in beside:
        sources[layer.name] = [tensor(chain[-1].name)]
    join = layers[-1 - len(after)]
    sources[join.name] = [[tensor(layer.name) for (layer,) in beside]]
    for one, other in pairwise([join, *after]):
        sources[other.name] = [tensor(one.name)]
    return layers, functional(layers, sources)


def embedding(rows: int, width: int) -> Layer:
    config = {"input_dim": rows, "output_dim": width}
    return Layer("Embedding", config, [WEIGHTS.array(rows, width)])


def of_keras_2(model: Any) -> Any:
    """The same model as Keras 2 describes it."""
    for entry in model["config"]["layers"]:
        read = [node["args"][0] for node in entry["inbound_nodes"]]
        flat = [each for args in read for each in (args if isinstance(args, list) else [args])]
        names = [[*each["config"]["keras_history"], {}] for each in flat]
        entry["inbound_nodes"] = [names] if names else []
    return model


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kinds", [(MEAN, MAX), (MAX, MEAN), (MAX, MEAN, MAX)], ids=" ".join)
def test_poolings_that_are_joined_are_read_side_by_side(
    tmp_path: Path, kinds: tuple[str, ...], old: bool
) -> None:
    before = [START, WEIGHTS.recurrent("LSTM", 3, 4, True)]
    options = {"activation": "none"}
    x = torch.from_numpy(WEIGHTS.array(7, 3))
    rows = []
    for kind in kinds:
        file = write_archive(tmp_path / "one.keras", [*map(changed, before), Layer(kind, {})])
        rows.append(answers(imported(tmp_path, file, "classify", options=options), x)[-1])
    dense = WEIGHTS.dense(4 * len(kinds), 2)
    pools = [[Layer(kind, {})] for kind in kinds]
    layers, model = joining("Concatenate", [*map(changed, before)], *pools, after=[dense])
    file = write_archive(tmp_path / "both.keras", layers, model)
    if old:
        file = write_legacy(tmp_path / "both.h5", layers, of_keras_2(model))
    read = imported(tmp_path, file, "classify", options=options)
    assert set(read.config.head.poolings) == {"mean", "max"}
    kernel, bias = map(torch.from_numpy, dense.arrays)
    agree(answers(read, x), torch.cat(rows) @ kernel + bias)


@pytest.mark.parametrize("kind", ["Add", "Concatenate"])
def test_embeddings_that_are_joined_become_one_table(tmp_path: Path, kind: str) -> None:
    tables = [embedding(5, 3), embedding(6, 3)]
    first, second = (table.arrays[0] for table in tables)
    both = first + second[:5] if kind == "Add" else np.concatenate([first, second[:5]], 1)
    after = [WEIGHTS.recurrent("GRU", both.shape[1], 4, False), WEIGHTS.dense(4, 2)]
    one = changed(tables[0])
    one.config, one.arrays = {"input_dim": 5, "output_dim": both.shape[1]}, [both]
    plain = write_archive(tmp_path / "p.keras", [WEIGHTS.inputs(None), one, *map(changed, after)])
    expected = answers(imported(tmp_path, plain, "classify"), IDS)
    layers, model = joining(kind, [WEIGHTS.inputs(None)], *([t] for t in tables), after=after)
    read = imported(tmp_path, write_archive(tmp_path / "j.keras", layers, model), "classify")
    assert read.config.vocab_size == 5
    agree(answers(read, IDS), expected)


@pytest.mark.parametrize(
    ("kind", "inputs", "problem"),
    [
        ("Add", [Layer(MEAN, {}), Layer(MAX, {})], "joins GlobalAveragePooling1D, GlobalMax"),
        ("Concatenate", [Layer("Dropout", {}), Layer(MAX, {})], "joins Dropout, GlobalMax"),
        ("Concatenate", [Layer("Dropout", {}), Layer("Flatten", {})], "joins Dropout, Flatten"),
        ("Concatenate", [embedding(5, 3), embedding(5, 3)], "must be the first layer"),
    ],
)
def test_other_joins_are_refused(
    tmp_path: Path, kind: str, inputs: list[Layer], problem: str
) -> None:
    before = [changed(START), WEIGHTS.recurrent("LSTM", 3, 4, True)]
    layers, model = joining(kind, before, *([each] for each in inputs), after=[WEIGHTS.dense(8, 2)])
    file = write_archive(tmp_path / "m.keras", layers, model)
    assert problem in refused(tmp_path, file, "classify")


def test_embeddings_of_different_widths_are_not_added(tmp_path: Path) -> None:
    tables = [[embedding(5, 3)], [embedding(5, 2)]]
    after = [WEIGHTS.recurrent("LSTM", 3, 4, False), WEIGHTS.dense(4, 2)]
    layers, model = joining("Add", [WEIGHTS.inputs(None)], *tables, after=after)
    file = write_archive(tmp_path / "m.keras", layers, model)
    assert "adds rows of different widths" in refused(tmp_path, file, "classify")


def test_a_model_of_a_class_of_its_own_is_refused(tmp_path: Path) -> None:
    model = {"class_name": "MyModel", "config": {"layers": []}}
    file = write_archive(tmp_path / "m.keras", [], model)
    assert "whose code is not in the file" in refused(tmp_path, file, "classify")


def test_two_layers_of_one_name_are_refused(tmp_path: Path) -> None:
    layers = [changed(STEPS), changed(WEIGHTS.recurrent("LSTM", 4, 4, False))]
    for layer in layers:
        layer.name = "twice"
    file = write_archive(tmp_path / "m.keras", layers)
    assert "two layers twice" in refused(tmp_path, file, "classify")
