"""Nodes of ONNX as its operators are defined, and what cannot be served."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from sruserve.model.errors import ModelError
from sruserve.model.importers.build import import_checkpoint
from tests.model.importers.files import agree, answers, imported, refused, run_import
from tests.model.importers.keras_formulas import sigmoid

RANDOM = np.random.default_rng(11)
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Array = NDArray[Any]


def array(*shape: int) -> Array:
    return RANDOM.normal(0, 0.5, shape).astype(np.float32)


def graph(
    path: Path,
    nodes: Sequence[Any],
    constants: dict[str, Array],
    shape: Sequence[int | str] = ("steps", 1, 3),
    outputs: Sequence[str] = ("y",),
    more_inputs: Sequence[str] = (),
    kind: int = FLOAT,
    domain: str = "",
    opset: int = 20,
) -> Path:
    """Write a model with the input x."""
    inputs = [helper.make_tensor_value_info("x", kind, shape)]
    inputs += [helper.make_tensor_value_info(name, FLOAT, None) for name in more_inputs]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    results = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs]
    own = helper.make_graph(list(nodes), "model", inputs, results, tensors)
    domains = [helper.make_opsetid("", opset)]
    domains += [helper.make_opsetid(domain, 1)] if domain else []
    path.write_bytes(helper.make_model(own, opset_imports=domains).SerializeToString())
    return path


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """A node; "-" is a left-out input."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(kind, names, outputs.split(), name=f"my_{kind}", **attributes)


GRU = {"W": array(1, 12, 3), "R": array(1, 12, 4), "B": array(1, 24)}
LSTM = {"W": array(1, 16, 3), "R": array(1, 16, 4), "B": array(1, 32)}
LINEAR = {"weight": array(4, 2), "bias": array(2)}
SQUEEZE = {"one": np.array([1])}
HEAD = [node("MatMul", "s weight", "m"), node("Add", "m bias", "y")]


def onnx_gru(x: Array, weights: dict[str, Array], linear_before_reset: bool) -> Array:
    """The operator's definition: blocks z, r, h; Rbh is inside the reset gate's product or not."""
    w, r, b = (weights[name][0].astype(np.float64) for name in "WRB")
    (wz, wr, wh), (rz, rr, rh) = np.split(w, 3), np.split(r, 3)
    wbz, wbr, wbh, rbz, rbr, rbh = np.split(b, 6)
    h, outputs = np.zeros(r.shape[1]), []
    for row in x:
        z = sigmoid(wz @ row + rz @ h + wbz + rbz)
        reset = sigmoid(wr @ row + rr @ h + wbr + rbr)
        if linear_before_reset:
            n = np.tanh(wh @ row + reset * (rh @ h + rbh) + wbh)
        else:
            n = np.tanh(wh @ row + rh @ (reset * h) + rbh + wbh)
        h = (1 - z) * n + z * h
        outputs.append(h)
    return np.array(outputs)


@pytest.mark.parametrize("linear_before_reset", [0, 1])
@pytest.mark.parametrize("layout", [0, 1])
def test_a_gru_is_the_operators_own(tmp_path: Path, linear_before_reset: int, layout: int) -> None:
    nodes = [
        node("GRU", "x W R B", "h", hidden_size=4, linear_before_reset=linear_before_reset,
             layout=layout),
        node("Squeeze", "h axis", "s"),
        *HEAD,
    ]  # fmt: skip
    constants = {**GRU, **LINEAR, "axis": np.array([2 if layout else 1])}
    shape = (1, "steps", 3) if layout else ("steps", 1, 3)
    model = imported(tmp_path, graph(tmp_path / "m.onnx", nodes, constants, shape), "regress")
    x = array(7, 3)
    theirs = onnx_gru(x, GRU, bool(linear_before_reset)) @ LINEAR["weight"] + LINEAR["bias"]
    agree(answers(model, torch.from_numpy(x)), torch.from_numpy(theirs).float())


def test_one_of_several_outputs_is_chosen(tmp_path: Path) -> None:
    nodes = [
        node("LSTM", "x W R B", "all h c", hidden_size=4),
        node("Squeeze", "all one", "y"),
    ]
    path = graph(tmp_path / "m.onnx", nodes, {**LSTM, **SQUEEZE}, outputs=("y", "h", "c"))
    assert 'outputs y, h, c: choose one with "output"' in refused(tmp_path, path, "encode")
    model = imported(tmp_path, path, "encode", options={"output": "y"})
    assert model.config.rnn.output_size == 4


JOINS = {
    "sum": [node("Add", "a b", "rows")],
    "difference": [node("Sub", "a b", "rows")],
    "product": [node("Mul", "a b", "rows")],
    "of layers": [node("Relu", "a", "r"), node("Mul", "b by", "t"), node("Add", "r t", "rows")],
    "side by side": [node("Concat", "a b", "wide", axis=-1), node("MatMul", "wide to", "rows")],
}


@pytest.mark.parametrize("name", JOINS)
def test_embeddings_of_the_same_ids_become_one_table(tmp_path: Path, name: str) -> None:
    both = [node("Gather", "first x", "a"), node("Gather", "second x", "b")]
    tables = {"first": array(11, 3), "second": array(14, 3)}
    constants = {**LSTM, **LINEAR, **SQUEEZE, **tables}
    constants |= {"by": np.full(1, 3, np.float32), "to": array(6, 3)}
    nodes = [*both, *JOINS[name], *lstm("rows W R B")]
    shape = ("steps", 1)
    model = imported(
        tmp_path, graph(tmp_path / "m.onnx", nodes, constants, shape, kind=INT64), "regress"
    )
    assert model.config.vocab_size == 11
    ids = RANDOM.integers(0, 11, 9)
    one, two = (table[ids] for table in tables.values())
    rows = {
        "sum": one + two,
        "difference": one - two,
        "product": one * two,
        "of layers": np.maximum(one, 0) + two * 3,
        "side by side": np.concatenate([one, two], 1) @ constants["to"],
    }[name]
    same = imported(tmp_path, graph(tmp_path / "f.onnx", lstm(), constants), "regress")
    agree(answers(model, torch.from_numpy(ids)), answers(same, torch.from_numpy(rows)))


POOLED = {
    "mean max": "mean max",
    "last max mean": "last max mean",
    "h max": "last max",
    "max h c": "max final",
    "c mean last h": "final mean",
    "mean mean": "mean",
    "last h": "last",
}


def blocks_of(array: Array) -> Array:
    """The rows of PyTorch's i, f, g, o in the order of the operator: i, o, f, g."""
    i, f, g, o = np.split(array, 4)
    return np.concatenate([i, o, f, g])


def lstm_weights(module: torch.nn.LSTM, number: int) -> dict[str, Array]:
    """The operator's W, R and B, with a number after their names."""
    state = {name: blocks_of(tensor.numpy()) for name, tensor in module.state_dict().items()}
    suffixes = ("_l0", "_l0_reverse")[: 1 + module.bidirectional]
    biases = [np.concatenate([state[f"bias_{k}h{s}"] for k in "ih"]) for s in suffixes]
    return {
        f"W{number}": np.stack([state[f"weight_ih{s}"] for s in suffixes]),
        f"R{number}": np.stack([state[f"weight_hh{s}"] for s in suffixes]),
        f"B{number}": np.stack(biases),
    }


@pytest.mark.parametrize("name", POOLED)
@pytest.mark.parametrize("directions", [(1, 1), (2, 2), (2, 1), (1, 2)], ids=str)
def test_poolings_of_the_same_outputs_are_read_side_by_side(
    tmp_path: Path, name: str, directions: tuple[int, int]
) -> None:
    modules, nodes, width, x = [], [], 3, "x"
    constants = {"flat": np.array([0, 0, -1]), "row": np.array([1, -1])}
    constants |= {"end": np.array(-1), "first": np.array([0])}
    for i, count in enumerate(directions):
        modules.append(torch.nn.LSTM(width, 4, bidirectional=count == 2))
        constants |= lstm_weights(modules[i], i)
        direction = "bidirectional" if count == 2 else "forward"
        states = f"{x} W{i} R{i} B{i}", f"y{i} h{i} c{i}"
        nodes += [
            node("LSTM", *states, hidden_size=4, direction=direction),
            node("Transpose", f"y{i}", f"t{i}", perm=[0, 2, 1, 3]),
            node("Reshape", f"t{i} flat", f"all{i}"),
        ]
        width, x = 4 * count, f"all{i}"
    nodes += [
        node("Gather", f"{x} end", "last", axis=0),
        node("ReduceMean", f"{x} first", "mean", keepdims=0),
        node("ReduceMax", f"{x} first", "max", keepdims=0),
        node("Transpose", "h1", "th", perm=[1, 0, 2]),
        node("Reshape", "th row", "h"),
        node("Transpose", "c0", "tc", perm=[1, 0, 2]),
        node("Reshape", "tc row", "c"),
        node("Concat", name, "y", axis=1),
    ]
    path = graph(tmp_path / "m.onnx", nodes, constants)
    model = imported(tmp_path, path, "classify", options={"activation": "none"})
    inputs = torch.from_numpy(array(9, 3))
    with torch.no_grad():
        below, (_, c) = modules[0](inputs)
        out, (h, _) = modules[1](below)
    rows = {"last": out[-1], "mean": out.mean(0), "max": out.amax(0)}
    rows |= {"h": h.flatten(), "c": c.flatten()}
    agree(answers(model, inputs), torch.cat([rows[each] for each in name.split()]))
    if directions == (1, 1):
        assert " ".join(model.config.head.poolings) == POOLED[name]


def lstm(inputs: str = "x W R B", **attributes: Any) -> list[Any]:
    squeeze = node("Squeeze", "h one", "s")
    return [node("LSTM", inputs, "h", hidden_size=4, **attributes), squeeze, *HEAD]


STEP = [node("LSTM", "x W R B", "h", hidden_size=4), node("Squeeze", "h one", "a")]
CASES: dict[str, tuple[list[Any], dict[str, Array], str]] = {
    "peepholes": (
        lstm("x W R B - - - P"), {"P": array(1, 12)}, "my_LSTM (LSTM) has peepholes"
    ),
    "clip": (lstm(clip=1.0), {}, "has the attribute clip"),
    "coupled": (lstm(input_forget=1), {}, "has the attribute input_forget"),
    "reverse": (lstm(direction="reverse"), {}, "has the direction reverse"),
    "lengths": (lstm("x W R B n"), {"n": np.array([3], np.int32)}, "has sequence_lens"),
    "start": (lstm("x W R B - a"), {"a": array(1, 1, 4)}, "has an initial_h that is not 0"),
    "functions": (
        lstm(activations=["Sigmoid", "Relu", "Tanh"]), {}, "served are the default ones"
    ),
    "shape": (lstm("x W R B4"), {"B4": array(1, 31)}, "has a B of shape [1, 31]"),
    "step": (
        [*STEP, node("Gather", "a two", "s", axis=0), *HEAD],
        {"two": np.array(2)},
        "only the last step can be served",
    ),
    "sum": (
        [*STEP, node("ReduceSum", "a zero", "s", keepdims=0), *HEAD],
        {"zero": np.array([0])},
        "(ReduceSum) cannot be served",
    ),
    "count": (
        [*STEP, node("Shape", "a", "size"), node("Gather", "size zero", "n"),
         node("Cast", "n", "f", to=FLOAT), node("Mul", "a f", "s"), *HEAD],
        {"zero": np.array(0)},
        "computes with the number of steps or inputs",
    ),
    "part": (
        [*STEP, node("Shape", "a", "size"), node("Gather", "size zeros", "n"),
         node("Slice", "a zeros n axis", "s"), *HEAD],
        {"zeros": np.array([0]), "axis": np.array([2])},
        "my_Slice (Slice) computes with the number of steps",
    ),
    "branch": (
        [*STEP, node("Mul", "a a2", "s"), node("Tanh", "a", "t"), *HEAD],
        {"a2": array(1, 5)},
        "which is not one for columns",
    ),
    "two": (
        [*STEP, node("Tanh", "a", "t"), node("Mul", "a t", "s"), *HEAD],
        {},
        "joins two branches",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_nodes_that_cannot_be_served_are_refused_by_name(tmp_path: Path, name: str) -> None:
    nodes, constants, problem = CASES[name]
    path = graph(tmp_path / "m.onnx", nodes, {**LSTM, **LINEAR, **SQUEEZE, **constants})
    assert problem in refused(tmp_path, path, "regress")


@pytest.mark.parametrize(
    ("start", "end", "steps"),
    [(0, 256, "256"), (0, 2**31 - 2, "2,147,483,646"), (-500, 2**63 - 1, "500")],
)
@pytest.mark.parametrize("shape", [("steps", 1, 3), (200, 1, 3)], ids=["any", "fixed"])
def test_a_cut_of_long_inputs_is_refused(
    tmp_path: Path, start: int, end: int, steps: str, shape: tuple[int | str, ...]
) -> None:
    nodes = [node("Slice", "x start end zero", "cut"), *lstm("cut W R B")]
    bounds = {"start": np.array([start]), "end": np.array([end]), "zero": np.array([0])}
    path = graph(tmp_path / "m.onnx", nodes, {**LSTM, **LINEAR, **SQUEEZE, **bounds}, shape)
    problem = refused(tmp_path, path, "regress")
    assert f"my_Slice (Slice) cuts inputs of more than {steps} steps" in problem


@pytest.mark.parametrize("steps", ["steps", 200])
def test_a_fixed_number_of_steps_is_assumed_to_be_any(tmp_path: Path, steps: str | int) -> None:
    path = graph(tmp_path / "m.onnx", lstm(), {**LSTM, **LINEAR, **SQUEEZE}, (steps, 1, 3))
    output = run_import(tmp_path, path, "tag").output
    fixed = "assumed: any number of steps, not 200 alone, activation softmax\n"
    assert (fixed if steps == 200 else "assumed: activation softmax\n") in output


def test_a_slice_of_all_steps_is_no_cut(tmp_path: Path) -> None:
    nodes = [node("Slice", "x start end zero", "all"), *lstm("all W R B")]
    bounds = {"start": np.array([0]), "end": np.array([2**31 - 1]), "zero": np.array([0])}
    path = graph(tmp_path / "m.onnx", nodes, {**LSTM, **LINEAR, **SQUEEZE, **bounds})
    assert imported(tmp_path, path, "regress").config.rnn.num_layers == 1


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
def test_a_softmax_of_an_early_version_is_over_all_axes_from_the_second(
    tmp_path: Path, kind: str
) -> None:
    nodes = [node("LSTM", "x W R B", "h", hidden_size=4), node("Squeeze", "h", "s", axes=[1])]
    nodes += [node("MatMul", "s weight", "m")]
    constants = {**LSTM, "weight": LINEAR["weight"]}

    def early(*last: Any) -> Path:
        return graph(tmp_path / "m.onnx", [*nodes, *last], constants, opset=11)

    turned = node("Transpose", "m", "t", perm=[1, 0, 2])
    features_first = node("Transpose", "m", "f", perm=[1, 2, 0])
    for last in ([turned, node(kind, "t", "y")], [features_first, node(kind, "f", "y", axis=1)]):
        assert "is over all axes from 1 on, as in each opset before 13" in refused(
            tmp_path, early(*last), "tag", labels=["a", "b"]
        )
    path = early(turned, node(kind, "t", "y", axis=2))
    assert imported(tmp_path, path, "tag", labels=["a", "b"]).config.activation == "softmax"


@pytest.mark.parametrize("trains", [True, False])
def test_a_dropout_that_drops_numbers_is_refused(tmp_path: Path, trains: bool) -> None:
    nodes = [node("Dropout", "x ratio mode", "z"), *lstm("z W R B")]
    constants = {**LSTM, **LINEAR, **SQUEEZE}
    constants |= {"ratio": np.array(0.5, np.float32), "mode": np.array(trains)}
    path = graph(tmp_path / "m.onnx", nodes, constants)
    if trains:
        assert "(Dropout) is in training mode" in refused(tmp_path, path, "regress")
    else:
        imported(tmp_path, path, "regress")


def test_operators_of_other_domains_are_refused(tmp_path: Path) -> None:
    own = helper.make_node("Evil", ["x"], ["z"], domain="mine")
    path = graph(tmp_path / "m.onnx", [own, *lstm("z W R B")], {**LSTM, **LINEAR}, domain="mine")
    assert "operators of its own (mine)" in refused(tmp_path, path, "regress")


def test_states_as_inputs_are_refused_with_what_to_do(tmp_path: Path) -> None:
    path = graph(
        tmp_path / "m.onnx", lstm("x W R B - a"), {**LSTM, **LINEAR, **SQUEEZE}, more_inputs=["a"]
    )
    assert "2 inputs (x, a)" in refused(tmp_path, path, "regress")


def test_control_flow_is_never_run(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [node("Identity", "x", "z")], "then", [], [helper.make_tensor_value_info("z", FLOAT, None)]
    )
    branch = node("If", "yes", "z", then_branch=inner, else_branch=inner)
    constants = {**LSTM, **LINEAR, **SQUEEZE, "yes": np.array(True)}
    path = graph(tmp_path / "m.onnx", [branch, *lstm("z W R B")], constants)
    assert "my_If (If) has the attribute" in refused(tmp_path, path, "regress")


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "..", ""])
def test_data_in_other_folders_is_not_read(tmp_path: Path, location: str) -> None:
    path = graph(tmp_path / "m.onnx", lstm(), {**LSTM, **LINEAR, **SQUEEZE})
    model = onnx.ModelProto.FromString(path.read_bytes())
    tensor = next(t for t in model.graph.initializer if t.name == "W")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    path.write_bytes(model.SerializeToString())
    assert "only files beside the model are read" in refused(tmp_path, path, "regress")


@pytest.mark.parametrize("shape", [[1 << 20, 1 << 20], [1 << 40], [-1]])
def test_huge_constants_are_not_made(tmp_path: Path, shape: list[int]) -> None:
    nodes = [node("ConstantOfShape", "shape", "big"), node("Add", "big big", "more")]
    nodes += [node("Add", "x more", "z"), *lstm("z W R B")]
    constants = {**LSTM, **LINEAR, **SQUEEZE, "shape": np.array(shape)}
    message = refused(tmp_path, graph(tmp_path / "m.onnx", nodes, constants), "regress")
    assert "too large a constant" in message or "does not fit" in message


def test_no_damaged_file_ends_in_another_error(tmp_path: Path) -> None:
    path = graph(tmp_path / "m.onnx", lstm(), {**LSTM, **LINEAR, **SQUEEZE})
    content = path.read_bytes()
    for _ in range(200):
        damaged = bytearray(content)
        for place in RANDOM.integers(0, len(content), 6):
            damaged[place] = RANDOM.integers(256)
        path.write_bytes(bytes(damaged[: RANDOM.integers(1, 2 * len(content))]))
        with suppress(ModelError):  # bytes that do not matter may have changed
            import_checkpoint(path, tmp_path / "out", "regress")
