"""Is a file's graph the one that an export of its config makes? Only weights may differ.

A graph that is, can end no process.
Names of values may differ, because the libraries that make them up change.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

from sruserve.export.onnx.network import GraphKind
from sruserve.export.onnx.skeleton import Weights, skeleton
from sruserve.model.config import ModelConfig
from sruserve.model.errors import CheckpointError
from sruserve.model.network import network_shapes

_GRAPH = onnx.AttributeProto.GRAPH
_DEFAULT_DOMAINS = ("", "ai.onnx")


def check_graph(graph: Any, config: ModelConfig, kind: GraphKind, path: Path) -> None:
    """Raise `CheckpointError` unless a file's graph is that of its config, but for its weights."""
    # Each number takes a byte or more, so a config cannot ask for a larger graph than the file's.
    numbers = sum(map(math.prod, network_shapes(config).values()))
    if numbers > graph.ByteSize():
        raise CheckpointError(
            f"{path}: its config has {numbers:,} weights, which its {graph.ByteSize():,} bytes "
            "cannot hold; export the model again"
        )
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    expected, weights = skeleton(config, kind, types)
    try:
        _compare_weights(graph, weights)
        constants = {each.name: each for each in graph.initializer if each.name not in weights}
        expected_constants = {each.name: each for each in expected.initializer}
        names = {name: name for name in weights}
        inputs = [each for each in graph.input if each.name not in weights]
        _Comparison(names, constants, expected_constants).compare(graph, expected, inputs)
    except _DifferentError as error:
        raise CheckpointError(
            f"{path}: its graph is not that of its config: {error}; export the model again"
        ) from None


class _DifferentError(Exception):
    """Two graphs differ."""


def _compare_weights(graph: Any, weights: Weights) -> None:
    found: Weights = {}
    for tensor in graph.initializer:
        if tensor.name in found:
            raise _DifferentError(f"{tensor.name[:80]!r} is there twice")
        found[tensor.name] = tensor.data_type, tuple(tensor.dims)
    for name, kind_and_shape in weights.items():
        if found.get(name) != kind_and_shape:
            raise _DifferentError(f"the weight {name!r} is missing, or has another type or shape")


class _Comparison:
    """Compares graphs node by node.

    names: of the values that are known so far, with the names that they have in an export.
    constants, expected_constants: by name, in the file and in an export.
    """

    def __init__(
        self, names: dict[str, str], constants: dict[str, Any], expected_constants: dict[str, Any]
    ) -> None:
        self._names, self._constants = names, constants
        self._expected_constants = expected_constants

    def compare(self, graph: Any, expected: Any, inputs: Iterable[Any]) -> None:
        """Raise `_DifferentError` unless the graphs compute the same of the same inputs."""
        if graph.sparse_initializer or graph.quantization_annotation:
            raise _DifferentError("it has sparse or quantized values")
        for ours, theirs in _pairs(inputs, expected.input, "inputs"):
            self._compare_types(ours, theirs)
            self._define(ours.name, theirs.name)
        for ours, theirs in _pairs(graph.node, expected.node, "nodes"):
            self._compare_nodes(ours, theirs)
        for ours, theirs in _pairs(graph.output, expected.output, "outputs"):
            self._compare_types(ours, theirs)
            self._read(ours.name, theirs.name, "an output")

    def _compare_nodes(self, node: Any, expected: Any) -> None:
        what = f"node {node.name[:80]!r} ({node.op_type[:80]})"
        if node.op_type != expected.op_type or node.domain not in _DEFAULT_DOMAINS:
            raise _DifferentError(f"{what} is a {expected.op_type} in an export")
        for ours, theirs in _pairs(node.input, expected.input, f"inputs of {what}"):
            self._read(ours, theirs, what)
        attributes = {each.name: each for each in node.attribute}
        wanted = {each.name: each for each in expected.attribute}
        if attributes.keys() != wanted.keys() or len(attributes) != len(node.attribute):
            raise _DifferentError(f"{what} has other attributes")
        for name, attribute in attributes.items():
            if attribute.type == wanted[name].type == _GRAPH:
                self._compare_bodies(attribute.g, wanted[name].g)
            if _content(attribute) != _content(wanted[name]):
                raise _DifferentError(f"{what} has another value of {name!r}")
        for ours, theirs in _pairs(node.output, expected.output, f"outputs of {what}"):
            self._define(ours, theirs)

    def _compare_bodies(self, graph: Any, expected: Any) -> None:
        """Compare graphs inside a node, which see the values around them."""
        if graph.initializer or expected.initializer:  # one could hide a weight
            raise _DifferentError("a graph inside it has weights of its own")
        inner = _Comparison(dict(self._names), self._constants, self._expected_constants)
        inner.compare(graph, expected, graph.input)

    def _read(self, name: str, expected: str, what: str) -> None:
        """Compare what a node or a graph reads; a constant is compared by its value."""
        if name not in self._names and name in self._constants:
            constant = self._expected_constants.get(expected)
            if constant is None or not _are_equal(self._constants[name], constant):
                raise _DifferentError(f"{what} reads another constant in {name[:80]!r}")
        elif bool(name) != bool(expected) or (name and self._names.get(name) != expected):
            raise _DifferentError(f"{what} reads another value in {name[:80]!r}")

    def _define(self, name: str, expected: str) -> None:
        if bool(name) != bool(expected) or name in self._names or name in self._constants:
            raise _DifferentError(f"the value {name[:80]!r} is another one, or is there twice")
        if name:
            self._names[name] = expected

    def _compare_types(self, value: Any, expected: Any) -> None:
        if value.type != expected.type:
            raise _DifferentError(f"{value.name[:80]!r} has another type or shape")


def _pairs(ours: Any, theirs: Any, what: str) -> Iterable[tuple[Any, Any]]:
    if len(ours) != len(theirs):
        raise _DifferentError(f"it has {len(ours):,} {what}, and an export {len(theirs):,}")
    return zip(ours, theirs, strict=True)


def _content(attribute: Any) -> bytes:
    """What a node computes with, but for the graph inside it."""
    copy = onnx.AttributeProto()
    copy.CopyFrom(attribute)
    for field in ("doc_string", "g"):
        copy.ClearField(field)
    content: bytes = copy.SerializeToString(deterministic=True)
    return content


def _are_equal(tensor: Any, expected: Any) -> bool:
    """Whether two constants are equal, but for numbers that an export takes from weights."""
    if tensor.data_type != expected.data_type or tensor.dims != expected.dims:
        return False
    if tensor.data_type == onnx.TensorProto.FLOAT:
        return True
    try:
        ours = numpy_helper.to_array(tensor)
    except (ValueError, TypeError):  # its bytes are not those of its shape
        return False
    return bool(ours.tobytes() == numpy_helper.to_array(expected).tobytes())
