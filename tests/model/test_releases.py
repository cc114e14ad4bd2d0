"""The original library against ours: every release, with any options."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sruserve.kernels import RaggedBatch, dispatch
from sruserve.model.config import ModelConfig, architecture
from sruserve.model.importers.formats import load_format
from sruserve.model.network import Network
from tests.oracles.releases import Oracle, call, needs

RELEASES = ("2.0.0", "2.1.4", "2.1.7", "2.1.9", "2.3.5", "2.6.0", "3.0.0.dev6")
Options = dict[str, Any]


@st.composite
def constructor_arguments(draw: st.DrawFn, release: str) -> Options:
    """Every argument of a release's `SRU` that changes its results."""
    options: Options = {
        "input_size": draw(st.integers(1, 12)),
        "hidden_size": draw(st.integers(1, 9)),
        "num_layers": draw(st.integers(1, 3)),
        "bidirectional": draw(st.booleans()),
        "layer_norm": draw(st.booleans()),
        "highway_bias": draw(st.sampled_from([0.0, -1.5])),
        # In Python the first releases cannot run without.
        "has_skip_term": release < "2.1.7" or draw(st.booleans()),
    }
    width = options["hidden_size"] * (2 if options["bidirectional"] else 1)
    if draw(st.booleans()):
        options["input_size"] = width
    if min(options["input_size"], width) < 4:  # the norm of so few numbers is close to a step
        options["layer_norm"] = False
    if draw(st.booleans()):
        options["rescale"] = draw(st.booleans())
    if release < "2.1.9":
        options[draw(st.sampled_from(["use_tanh", "use_relu", "v1"]))] = True
        options["n_proj"] = draw(st.integers(0, 10))
        # Later ones, and those that do not rescale, cannot make such a module.
        if release < "2.1.7" and not options["n_proj"] and options.get("rescale", True):
            options["weight_norm"] = draw(st.booleans())
        return options
    options["use_tanh"] = draw(st.booleans())
    options["projection_size"] = draw(st.integers(0, 10))
    if release >= "2.6":
        options["normalize_after"] = draw(st.booleans())
    if release >= "2.3.5":
        options["proj_input_to_hidden_first"] = draw(st.booleans())
    if release >= "3":
        sizes = st.lists(st.integers(0, 10), min_size=(n := options["num_layers"]), max_size=n)
        options["projection_size"] = draw(sizes | st.integers(0, 10))
    return options


@st.composite
def cases(draw: st.DrawFn, release: str) -> tuple[Options, list[int], int]:
    """Arguments, the steps of each sequence, and a seed."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    return draw(constructor_arguments(release)), lengths, draw(st.integers(0, 1 << 30))


@pytest.fixture(scope="module", params=[pytest.param(r, marks=needs(r)) for r in RELEASES])
def release(request: pytest.FixtureRequest) -> Iterator[tuple[str, Oracle]]:
    with Oracle(request.param) as oracle:
        yield request.param, oracle


@contextmanager
def kernel(name: str) -> Iterator[None]:
    """Run with the compiled kernel, or with its definition."""
    with patch.object(dispatch, "_cpu_kernel_name", lambda: name):
        yield


@settings(max_examples=25)
@given(data=st.data())
def test_a_release_and_ours_give_the_same_numbers(
    release: tuple[str, Oracle], data: st.DataObject
) -> None:
    version, oracle = release
    options, lengths, seed = data.draw(cases(version))
    generator = torch.Generator().manual_seed(seed)
    steps, batch = max(lengths), len(lengths)
    width = options["hidden_size"] * (2 if options["bidirectional"] else 1)
    x = torch.randn(steps, batch, options["input_size"], generator=generator)
    c_0 = torch.randn(options["num_layers"], batch, width, generator=generator)
    padding = torch.arange(steps).unsqueeze(1) >= torch.tensor(lengths)
    theirs = oracle.run([call(x, c_0, mask_pad=padding)], options, seed)
    ((h, c_n, *_),) = theirs["calls"]
    network = imported(theirs["state_dict"], options)
    for name in (dispatch._cpu_kernel_name(), "reference"):
        with kernel(name):
            ends = (
                [[data.draw(st.integers(0, n)) for n in lengths]]
                if network.supports_streaming
                else []
            )
            result, state = run(network, x, c_0, [*ends, lengths])
        for b, n in enumerate(lengths):
            torch.testing.assert_close(result[b], h[:n, b], rtol=0, atol=1e-5)
        # The Python of earlier releases mixes up the sequences of a backward direction's end state.
        if version >= "2.3" or batch == 1 or not options["bidirectional"]:
            torch.testing.assert_close(state, c_n, rtol=0, atol=1e-5)


def imported(tensors: dict[str, Tensor], options: Options) -> Network:
    """The network to which `sruserve import --task encode` converts a state dict."""
    read = load_format("sru").read(tensors, options, "encode")
    config = ModelConfig(
        architectures=(architecture(read.rnn, "encode"),), task="encode", rnn=read.rnn
    )
    return Network(config, read.tensors, torch.float32)


def run(
    network: Network, x: Tensor, c_0: Tensor, ends: list[list[int]]
) -> tuple[list[Tensor], Tensor]:
    """Outputs of every sequence, run up to each of `ends` in turn, and end states like c_0."""
    states = network.layout.pack({f"{i}.c": c for i, c in enumerate(c_0)})
    rows = torch.arange(x.shape[1])
    parts: list[list[Tensor]] = [[] for _ in rows]
    begins = [0] * len(rows)
    for chunk in ends:
        sizes = [end - begin for begin, end in zip(begins, chunk, strict=True)]
        inputs = torch.cat([x[begins[b] : chunk[b], b] for b in rows.tolist()])
        if len(inputs):
            offsets = torch.tensor([0, *sizes]).cumsum(0)
            h = network.hidden(inputs, RaggedBatch(offsets, states, rows, rows))
            for part, result in zip(parts, torch.split(h, sizes), strict=True):
                part.append(result)
        begins = chunk
    end = torch.stack([network.layout.unpack(states)[f"{i}.c"] for i in range(len(c_0))])
    return [torch.cat(part) for part in parts], end
