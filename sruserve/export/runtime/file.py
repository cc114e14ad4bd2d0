"""Read an ONNX file that `sruserve export onnx` wrote; anything else is refused with a reason."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from google.protobuf.message import DecodeError
from onnx import numpy_helper
from pydantic import ValidationError
from torch import Tensor

from sruserve.export.onnx.metadata import FORMAT, OPSET, PREFIX, Case, Properties, checksum
from sruserve.export.onnx.signature import answer_of, signature_of
from sruserve.export.runtime.graph_match import check_graph
from sruserve.export.runtime.recurrence_guard import graphs_in, guard_recurrences
from sruserve.export.runtime.weights import (
    make_signed,
    multiplies_signed,
    transpose_tables,
)
from sruserve.model.config import ModelConfig, explain, parse_config
from sruserve.model.errors import CheckpointError
from sruserve.model.files import read_regular
from sruserve.model.text.vocabulary_files import BYTES_FILE, WORDS_FILE

_EXPORT = "make it again by `sruserve export onnx`"
_LARGEST_FILE = 2 << 30  # bytes: a protocol buffer holds no more
_TYPES = {torch.float32: onnx.TensorProto.FLOAT, torch.int64: onnx.TensorProto.INT64}


@dataclass(frozen=True)
class OnnxFile:
    """A file that has been checked.

    kind: "step" or "sequence". vocabulary: contents by file name. The others: see `Properties`.
    """

    path: Path
    model: Any
    kind: str
    config: ModelConfig
    vocabulary: dict[str, bytes]
    digest: str
    checksum: str
    parameters: int
    case: Case

    def served(self, on_cpu: bool = True) -> bytes:
        """Return the file as a server runs it.

        It lacks labels and scores, which a server computes itself. int8 weights have signs where
        this processor multiplies these faster. On a CPU, recurrent operators are guarded against
        inputs that would end the process.
        """
        served = {answer_of(self.config), "new_state"}
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        outputs = [output for output in model.graph.output if output.name in served]
        needed, nodes = {output.name for output in outputs}, []
        for node in reversed(model.graph.node):
            if needed.intersection(node.output):
                for inner in graphs_in(node):
                    del inner.value_info[:]  # what a file says of values, nobody has compared
                nodes.append(node)
                needed |= _names_read(node)
        graph = onnx.GraphProto(name=model.graph.name)
        graph.node.extend(reversed(nodes))
        graph.input.extend(model.graph.input)
        graph.output.extend(outputs)
        weights = model.graph.initializer
        graph.initializer.extend(weight for weight in weights if weight.name in needed)
        model.graph.CopyFrom(graph)
        transpose_tables(model.graph)
        if multiplies_signed():
            make_signed(model.graph)
        if on_cpu:
            guard_recurrences(model.graph)
        content: bytes = model.SerializeToString()
        return content

    def tensor(self, name: str) -> Tensor:
        """Return a weight by its name."""
        for initializer in self.model.graph.initializer:
            if initializer.name == name:
                return torch.from_numpy(numpy_helper.to_array(initializer).copy())
        raise CheckpointError(f"{self.path} has no tensor {name}: export the model again")


def read_onnx(path: Path) -> OnnxFile:
    """Read and check a file.

    Raises `CheckpointError` for a file that `sruserve export onnx` did not write, that was changed
    since, or whose graph is not the one that its config describes.
    """
    model, properties = _read(path)
    _check_parts(model, path)
    config = parse_config(properties.config.encode(errors="replace"), f"the config in {path}")
    expected = [(e.name, list(e.shape), e.offset) for e in config.layout.entries]
    if expected != [(entry.name, entry.shape, entry.offset) for entry in properties.state]:
        raise CheckpointError(f"{path}: its state is not that of its config; export it again")
    if properties.task != config.task or properties.labels != list(config.labels):
        raise CheckpointError(f"{path}: its task or labels are not those of its config")
    if properties.weights != config.weights:
        raise CheckpointError(f"{path}: its weights are not those of its config")
    if unknown := properties.vocabulary.keys() - {WORDS_FILE, BYTES_FILE}:
        name = sorted(unknown)[0][:80]
        raise CheckpointError(f"{path}: its vocabulary has an unknown file {name!r}")
    _check_signature(model, config, properties.graph, path)
    check_graph(model.graph, config, properties.graph, path)
    return OnnxFile(
        path,
        model,
        properties.graph,
        config,
        {name: text.encode(errors="replace") for name, text in properties.vocabulary.items()},
        properties.digest,
        checksum(model),
        properties.parameters,
        properties.case,
    )


def _read(path: Path) -> tuple[Any, Properties]:
    """Return a file's content and its properties."""
    try:
        content = read_regular(path, _LARGEST_FILE)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise CheckpointError(f"{path} is not an ONNX file, or is truncated: {_EXPORT}") from error
    texts = {
        item.key.removeprefix(PREFIX): item.value
        for item in model.metadata_props
        if item.key.startswith(PREFIX)
    }
    if "format" not in texts:
        raise CheckpointError(
            f"{path} was not written by `sruserve export onnx`: `sruserve import` makes a model "
            "folder of an ONNX file with LSTM or GRU nodes"
        )
    if texts["format"] != FORMAT:
        raise CheckpointError(
            f"{path} was written by another version of sruserve (format {texts['format'][:20]!r}; "
            f"this one reads {FORMAT}): export the model again, or upgrade sruserve"
        )
    try:
        properties = Properties.read(texts)
    except ValidationError as error:
        raise CheckpointError(
            f"{path}: its metadata is damaged ({explain(error)[:300]}): export the model again"
        ) from error
    if texts.get("checksum") != checksum(model):
        raise CheckpointError(f"{path} was changed after its export: export the model again")
    return model, properties


def _names_read(node: Any) -> set[str]:
    """Return the names that a node reads, also in graphs inside it."""
    names = set(node.input)
    for inner in graphs_in(node):
        names |= {output.name for output in inner.output}
        for each in inner.node:
            names |= _names_read(each)
    return names


def _check_parts(model: Any, path: Path) -> None:
    """Raise `CheckpointError` for parts of a file that no export has, and for data elsewhere."""
    for opset in model.opset_import:
        if opset.domain not in ("", "ai.onnx"):
            raise CheckpointError(
                f"{path} uses operators of {opset.domain[:80]!r}, which no export does: {_EXPORT}"
            )
        if opset.version != OPSET:
            raise CheckpointError(
                f"{path} has operators of version {opset.version}; an export has version {OPSET}"
            )
    if model.functions:
        raise CheckpointError(
            f"{path} defines functions of its own, which no export does: {_EXPORT}"
        )
    for tensor in model.graph.initializer:
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
        actual = {value.name: _shape(value) for value in values}
        if actual != expected:
            shown = ", ".join(f"{name[:40]} {list(shape)}" for name, shape in actual.items())
            required = ", ".join(f"{name} {list(shape)}" for name, shape in expected.items())
            raise CheckpointError(
                f"{path}: its {what} are {shown[:300] or 'none'}, but those of its config are "
                f"{required[:300]}"
            )
        for value in values:
            if value.type.tensor_type.elem_type != _TYPES[signature.dtype(value.name)]:
                raise CheckpointError(f"{path}: {value.name} has another type than its config says")


def _shape(value: Any) -> tuple[str | int, ...]:
    return tuple(
        dim.dim_param if dim.HasField("dim_param") else dim.dim_value
        for dim in value.type.tensor_type.shape.dim
    )
