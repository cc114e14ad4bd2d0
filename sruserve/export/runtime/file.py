"""Read an ONNX file that `sruserve export onnx` wrote; anything else is refused with a reason."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
import torch
from google.protobuf.message import DecodeError
from onnx import numpy_helper
from torch import Tensor

from sruserve.export.onnx.metadata import FORMAT, PREFIX
from sruserve.export.onnx.signature import layout_of, signature_of
from sruserve.model.config import ModelConfig, parse_config
from sruserve.model.errors import CheckpointError, ConfigError
from sruserve.model.files import read_regular
from sruserve.model.text.codec import BYTES_FILE, WORDS_FILE

_LARGEST_FILE = 2 << 30  # bytes: a protocol buffer holds no more
_DEPTH = 2  # of graphs within graphs: a recurrence's body has none of its own
_OPERATORS = {
    "Abs", "Add", "And", "ArgMax", "Cast", "Concat", "Div", "Elu", "Equal", "Erf", "Exp", "Expand",
    "Flatten", "GRU", "Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "Greater",
    "GreaterOrEqual", "Identity", "LSTM", "LayerNormalization", "LeakyRelu", "Less", "Log",
    "LogSoftmax", "MatMul", "Max", "Mod", "Mul", "Or", "RNN", "Range", "ReduceMax", "ReduceMean",
    "ReduceSum", "Relu", "Reshape", "ReverseSequence", "Scan", "Selu", "Shape", "Sigmoid", "Slice",
    "Softmax", "Softplus", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze",
    "Where",
}  # fmt: skip


@dataclass(frozen=True)
class OnnxFile:
    """A file that has been checked.

    kind: "step" or "sequence". vocabulary: contents by file name. digest: that of the model folder
    that was exported. case: see `sruserve.export.onnx.metadata`.
    """

    path: Path
    content: bytes
    model: Any
    kind: str
    config: ModelConfig
    vocabulary: dict[str, bytes]
    digest: str
    case: dict[str, Any]

    @cached_property
    def numbers(self) -> int:
        """Number of the weights' numbers."""
        floats = [t for t in self.model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
        return sum(len(t.raw_data) // 4 or len(t.float_data) for t in floats)

    def tensor(self, name: str) -> Tensor:
        """Return a weight by its name."""
        for initializer in self.model.graph.initializer:
            if initializer.name == name:
                return torch.from_numpy(numpy_helper.to_array(initializer).copy())
        raise CheckpointError(f"{self.path} has no tensor {name}: export the model again")


def read_onnx(path: Path) -> OnnxFile:
    """Read and check a file.

    Raises `CheckpointError` for a file that `sruserve export onnx` did not write, or whose graph is
    not the one that its config describes.
    """
    try:
        content = read_regular(path, _LARGEST_FILE)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise CheckpointError(f"{path} is not an ONNX file, or is truncated") from error
    properties = {
        p.key.removeprefix(PREFIX): p.value
        for p in model.metadata_props
        if p.key.startswith(PREFIX)
    }
    if "format" not in properties:
        raise CheckpointError(
            f"{path} was not written by `sruserve export onnx`: `sruserve import` makes a model "
            "folder of an ONNX file with LSTM or GRU nodes"
        )
    if properties["format"] != FORMAT:
        raise CheckpointError(
            f"{path} was written by another version of sruserve (format {properties['format']}; "
            f"this one reads {FORMAT}): export the model again, or upgrade sruserve"
        )
    _check_graph(model, path)
    try:
        config = parse_config(properties["config"].encode(), f"the config in {path}")
        kind, digest = properties["graph"], properties["digest"]
        texts = json.loads(properties.get("vocabulary", "{}"))
        state, case = json.loads(properties["state"]), json.loads(properties["case"])
    except (KeyError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise CheckpointError(f"{path}: its metadata is damaged: export the model again") from error
    vocabulary = _vocabulary(texts, path)
    expected = [[e.name, list(e.shape), e.offset] for e in layout_of(config).entries]
    if not isinstance(state, list) or expected != [
        [e.get("name"), e.get("shape"), e.get("offset")] for e in state if isinstance(e, dict)
    ]:
        raise CheckpointError(f"{path}: its state is not that of its config; export it again")
    if kind not in ("step", "sequence") or not isinstance(case, dict):
        raise CheckpointError(f"{path}: its metadata is damaged: export the model again")
    _check_signature(model, config, kind, path)
    return OnnxFile(path, content, model, kind, config, vocabulary, digest, case)


def _vocabulary(texts: object, path: Path) -> dict[str, bytes]:
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise CheckpointError(f"{path}: its vocabulary is damaged: export the model again")
    if unknown := texts.keys() - {WORDS_FILE, BYTES_FILE}:
        raise CheckpointError(f"{path}: its vocabulary has an unknown file {sorted(unknown)[0]}")
    return {name: text.encode() for name, text in texts.items()}


def _check_graph(model: Any, path: Path) -> None:
    """Raise `CheckpointError` for operators that no export has, and for data in other files."""
    for opset in model.opset_import:
        if opset.domain not in ("", "ai.onnx"):
            raise CheckpointError(
                f"{path} uses operators of {opset.domain[:80]!r}, which we do not"
            )
    if model.functions:
        raise CheckpointError(f"{path} defines functions of its own, which no export does")
    _check_nodes(model.graph, path, 1)


def _check_nodes(graph: Any, path: Path, depth: int) -> None:
    if graph.sparse_initializer:
        raise CheckpointError(f"{path} has sparse weights, which no export has")
    _check_tensors(graph.initializer, path)
    for node in graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type not in _OPERATORS:
            raise CheckpointError(
                f"{path}: node {node.name[:80]!r} is a {node.op_type[:80]!r}, which no export has"
            )
        for attribute in node.attribute:
            _check_tensors([attribute.t, *attribute.tensors], path)
            graphs = [attribute.g] if attribute.HasField("g") else []
            for inner in [*graphs, *attribute.graphs]:
                if depth == _DEPTH:
                    raise CheckpointError(f"{path}: a graph in {node.name[:80]!r} is nested deeper")
                _check_nodes(inner, path, depth + 1)


def _check_tensors(tensors: Iterable[Any], path: Path) -> None:
    for tensor in tensors:
        if tensor.external_data or tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise CheckpointError(
                f"{path}: the tensor {tensor.name[:80]!r} lies in another file; an export has all "
                "its weights inside: export the model again"
            )


def _check_signature(model: Any, config: ModelConfig, kind: str, path: Path) -> None:
    signature = signature_of(config, kind)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    pairs = (
        ("inputs", inputs, signature.inputs),
        ("outputs", model.graph.output, signature.outputs),
    )
    for what, values, expected in pairs:
        found = {value.name: _shape(value) for value in values}
        if found != expected:
            shown = ", ".join(f"{name} {list(shape)}" for name, shape in found.items())[:300]
            wanted = ", ".join(f"{name} {list(shape)}" for name, shape in expected.items())[:300]
            raise CheckpointError(
                f"{path}: its {what} are {shown or 'none'}, but those of its config are {wanted}"
            )


def _shape(value: Any) -> tuple[str | int, ...]:
    return tuple(
        dim.dim_param if dim.HasField("dim_param") else dim.dim_value
        for dim in value.type.tensor_type.shape.dim
    )
