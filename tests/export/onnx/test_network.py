"""Graphs give the network's own answers, for every family, option, pooling and head."""

from typing import Any

import onnx_ir as ir
import pytest
import torch

from sruserve.export.errors import ExportError
from sruserve.export.onnx.check import GraphCheck
from sruserve.export.onnx.graph import IR_VERSION
from sruserve.export.onnx.metadata import OPSET
from sruserve.export.onnx.network import GraphMaker
from sruserve.model.cells import FAMILIES
from sruserve.model.network import Network
from tests.export.onnx.networks import NAMES, STACKS, config_of
from tests.support import random_tensors

STREAMABLE = [name for name in NAMES if config_of(name).not_streamable_because is None]
CONTROL_FLOW = {"If", "Loop", "Scan"}
# Nodes of a recurrence's body that must be no more: what one step needs of the one before it.
BODIES = {"sru": 7, "qrnn": 4, "lrn": 9}


def made(name: str) -> tuple[GraphMaker, Network]:
    config = config_of(name)
    tensors = random_tensors(config)
    return GraphMaker(config, tensors), Network(config, tensors, torch.float32)


def operators(graph: ir.Graph) -> list[str]:
    return [node.op_type for node in graph.all_nodes()]


def test_every_family_is_here() -> None:
    assert {form.split("-")[0] for form in STACKS} == set(FAMILIES)


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_of_sequences_gives_the_networks_answers(name: str) -> None:
    maker, network = made(name)
    GraphCheck(maker.sequence({}), network).sequence()


@pytest.mark.parametrize("name", STREAMABLE)
def test_a_graph_of_one_step_gives_the_networks_answers_without_control_flow(name: str) -> None:
    maker, network = made(name)
    model = maker.step({})
    GraphCheck(model, network).step()
    assert not CONTROL_FLOW & set(operators(model.graph))


@pytest.mark.parametrize("family", BODIES)
def test_a_recurrence_repeats_only_what_the_next_step_needs(family: str) -> None:
    maker, network = made(family)
    model = maker.sequence({})
    scans = [node for node in model.graph if node.op_type == "Scan"]
    assert len(scans) == len(network.layers)
    for scan in scans:
        body: Any = scan.attributes["body"].value
        assert "MatMul" not in operators(body)
        assert len([name for name in operators(body) if name != "Identity"]) <= BODIES[family]


@pytest.mark.parametrize("family", ["lstm", "gru", "rnn-tanh"])
def test_sequences_of_gated_layers_use_the_operators_of_onnx(family: str) -> None:
    maker, _ = made(family)
    assert family.split("-")[0].upper() in operators(maker.sequence({}).graph)


def test_graphs_have_the_versions_that_last_years_runtimes_read() -> None:
    maker, _ = made("sru")
    model = maker.step({"sruserve.task": "encode"})
    assert (model.opset_imports[""], model.ir_version) == (OPSET, IR_VERSION) == (20, 9)
    assert model.metadata_props["sruserve.task"] == "encode"


@pytest.mark.parametrize("kind", ["step", "sequence"])
def test_a_graph_that_disagrees_with_its_network_is_found(kind: str) -> None:
    maker, network = made("classify-mean")
    config = config_of("classify-mean")
    other = random_tensors(config)
    other["rnn.rnn_lst.1.bias"][3] += 1e-3
    model = GraphMaker(config, other).step({}) if kind == "step" else maker.sequence({})
    checked = network if kind == "step" else Network(config, other, torch.float32)
    with pytest.raises(ExportError, match=r"are up to .* from the network's"):
        getattr(GraphCheck(model, checked), kind)()
