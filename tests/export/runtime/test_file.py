"""Files that `sruserve export onnx` did not write, or that were changed, are refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch

from sruserve.export.errors import RuntimePlacementError
from sruserve.export.onnx.export import export_onnx
from sruserve.export.onnx.metadata import checksum
from sruserve.export.runtime.load import load_any
from sruserve.model.errors import DTypeError, ModelError
from tests.support import save_random_model

Change = Callable[[Any], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    native = save_random_model(tmp_path / "native", "generate", vocabulary=list(b"abc \n"))
    export_onnx(native, tmp_path / "model")
    return tmp_path / "model"


def changed(folder: Path, change: Change, name: str = "model.onnx") -> Path:
    """The folder with a changed file, whose checksum is right."""
    model = onnx.load(folder / name)
    change(model)
    if model.metadata_props:
        set_property("checksum", checksum(model))(model)
    (folder / name).write_bytes(model.SerializeToString())
    return folder


def set_property(name: str, value: str) -> Change:
    def change(model: Any) -> None:
        (own,) = [p for p in model.metadata_props if p.key == f"sruserve.{name}"]
        own.value = value

    return change


def set_case(**fields: Any) -> Change:
    def change(model: Any) -> None:
        (own,) = [p for p in model.metadata_props if p.key == "sruserve.case"]
        own.value = json.dumps(json.loads(own.value) | fields)

    return change


def drop_properties(model: Any) -> None:
    del model.metadata_props[:]


def drop_config(model: Any) -> None:
    kept = [p for p in model.metadata_props if p.key != "sruserve.config"]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)


def int8_weights(model: Any) -> None:
    model.metadata_props.add(key="sruserve.weights", value="int8")


def foreign_node(model: Any) -> None:
    model.graph.node[0].op_type = "If"


def foreign_domain(model: Any) -> None:
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))


def early_operators(model: Any) -> None:
    model.opset_import[0].version = 12


def own_function(model: Any) -> None:
    model.functions.add().name = "mine"


def sparse_weight(model: Any) -> None:
    model.graph.sparse_initializer.add()


def external_data(model: Any) -> None:
    tensor = model.graph.initializer[0]
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../etc/passwd"
    tensor.data_location = onnx.TensorProto.EXTERNAL


def false_shapes(model: Any) -> None:
    scan = next(node for node in model.graph.node if node.op_type == "Scan")
    body = next(a.g for a in scan.attribute if a.name == "body")
    for graph in (model.graph, body):
        del graph.value_info[:]
        for name in (name for node in graph.node for name in node.output):
            claim = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1 << 62])
            graph.value_info.append(claim)


def other_input(model: Any) -> None:
    model.graph.input[0].name = "text"


def other_shape(model: Any) -> None:
    state = next(value for value in model.graph.input if value.name == "state")
    state.type.tensor_type.shape.dim[1].dim_value += 1


def other_type(model: Any) -> None:
    state = next(value for value in model.graph.input if value.name == "state")
    state.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE


def other_output(model: Any) -> None:
    del model.graph.output[-1]


def other_weights(model: Any) -> None:
    tensor = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    tensor.raw_data = bytes(len(tensor.raw_data))


def wrong_size(model: Any) -> None:
    tensor = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    tensor.raw_data = tensor.raw_data[:-4]


REFUSED: dict[str, tuple[Change, str]] = {
    "no properties": (drop_properties, "was not written by `sruserve export onnx`"),
    "another format": (set_property("format", "2"), "another version of sruserve"),
    "no config": (drop_config, "metadata is damaged"),
    "a wrong config": (set_property("config", '{"task": 1}'), "is not a valid config"),
    "a wrong state": (set_property("state", "[]"), "its state is not that of its config"),
    "a wrong case": (set_property("case", "[]"), "metadata is damaged"),
    "an empty case": (set_property("case", "{}"), "metadata is damaged"),
    "a case without an answer": (set_case(answer=[]), "metadata is damaged"),
    "a case with half an answer": (set_case(answer=[0.5]), "its case cannot run"),
    "a case without inputs": (set_case(inputs={}), "its case cannot run"),
    "a large case": (set_case(sizes={"batch": 1 << 40}), "metadata is damaged"),
    "a deep case": (set_property("case", "[" * 100_000), "metadata is damaged"),
    "a wrong digest": (set_property("digest", "zz"), "metadata is damaged"),
    "another task": (set_property("task", "tag"), "its task or labels are not those"),
    "other weights than the config's": (int8_weights, "its weights are not those of its config"),
    "a half character": (set_property("vocabulary", '{"bytes.json": "\\ud800"}'), "damaged"),
    "a wrong graph": (set_property("graph", "loop"), "metadata is damaged"),
    "a wrong vocabulary": (set_property("vocabulary", "[]"), "metadata is damaged"),
    "a foreign file": (
        set_property("vocabulary", json.dumps({"../x": ""})),
        "its vocabulary has an unknown file",
    ),
    "another vocabulary": (
        set_property("vocabulary", json.dumps({"bytes.json": "[97, 98]"})),
        "vocabulary does not fit",
    ),
    "a foreign node": (foreign_node, r"its graph is not that of its config: node .* \(If\)"),
    "a foreign domain": (
        foreign_domain,
        "uses operators of 'com.microsoft', which no export does: make it again",
    ),
    "early operators": (early_operators, "has operators of version 12; an export has version 20"),
    "functions": (own_function, "defines functions of its own"),
    "sparse weights": (sparse_weight, "it has sparse or quantized values"),
    "external data": (external_data, "lies in another file"),
    "another input": (other_input, "its inputs are"),
    "another shape": (other_shape, "its inputs are"),
    "a missing output": (other_output, "its outputs are"),
    "other weights": (other_weights, "gives a different answer to its built-in test case"),
    "another type": (other_type, "has another type than its config says"),
    "a truncated weight": (wrong_size, "ONNX Runtime cannot load the graph"),
}


def test_what_a_file_says_of_the_shapes_inside_it_is_not_believed(folder: Path) -> None:
    load_any(changed(folder, false_shapes))


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_with_something_else_is_refused(folder: Path, name: str) -> None:
    change, reason = REFUSED[name]
    with pytest.raises(ModelError, match=reason) as refused:
        load_any(changed(folder, change))
    assert str(folder) in str(refused.value) or "ONNX Runtime" in str(refused.value)


@pytest.mark.parametrize("change", [other_weights, set_property("parameters", "7")])
def test_a_file_that_was_changed_is_refused(folder: Path, change: Change) -> None:
    model = onnx.load(folder / "step.onnx")
    change(model)
    (folder / "step.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="was changed after its export"):
        load_any(folder)


def test_an_unchanged_file_is_loaded_whole_or_alone(folder: Path) -> None:
    assert load_any(folder).digest == load_any(folder / "model.onnx").digest
    assert load_any(changed(folder, lambda _: None)).name == "model"


@pytest.mark.parametrize("content", [b"", b"text", b"\x08"])
def test_other_content_is_refused(folder: Path, content: bytes) -> None:
    (folder / "model.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=r"not an ONNX file|not written by"):
        load_any(folder)


def test_a_graph_of_one_step_is_no_model_alone(folder: Path) -> None:
    with pytest.raises(ModelError, match="needs the graph of sequences"):
        load_any(folder / "step.onnx")


def test_graphs_of_two_models_are_refused(folder: Path, tmp_path: Path) -> None:
    other = save_random_model(tmp_path / "other", "generate", vocabulary=list(b"abc \n"), seed=1)
    export_onnx(other, folder / "step.onnx", ("step",))
    with pytest.raises(ModelError, match=r"not the graph of one step of model\.onnx"):
        load_any(folder)


def test_a_16_bit_dtype_is_refused(folder: Path) -> None:
    with pytest.raises(DTypeError, match="computes in float32"):
        load_any(folder, "bfloat16")


def test_without_a_build_for_cuda_a_gpu_is_refused_unless_the_cpu_is_allowed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    providers = ["CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
    gpu = torch.device("cuda", 0)
    with pytest.raises(RuntimePlacementError, match="SRUSERVE_ONNX_ALLOW_CPU"):
        load_any(folder, device=gpu)
    network = load_any(folder, device=gpu, allow_cpu=True).network
    assert network.device.type == "cpu"
    assert "CPUExecutionProvider" in network.kernel
