"""Files of every release of `sru`, against the cell written out step by step."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sruserve.model.cells.sru import SRUConfig
from sruserve.model.errors import ModelError
from sruserve.model.importers import sru
from tests.model.importers.formulas import norm_1, norm_2, random, sru_layer
from tests.model.importers.running import agree, hidden, imported, refused

STEPS = 9
SQUARE = (12, 12)  # input and hidden: three blocks, and the input itself is the highway


def layer(
    inputs: int, hidden_size: int, index: int, directions: int = 1, scale: float | None = 1.0
) -> dict[str, Tensor]:
    """A layer of 2.x; scale None: of 1.x."""
    width = hidden_size * directions
    blocks = 3 if inputs == width else 4
    tensors = {
        "weight": random(inputs, width * blocks, seed=10 * index),
        "bias": random(2 * width, seed=10 * index + 1),
    }
    if scale is not None:
        tensors["weight_c"] = random(2 * width, seed=10 * index + 2)
        tensors["scale_x"] = torch.tensor([scale])
    return tensors


def stack(*layers: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"rnn_lst.{i}.{k}": t for i, own in enumerate(layers) for k, t in own.items()}


def run(own: dict[str, Tensor], x: Tensor, **how: Any) -> Tensor:
    return sru_layer(x, own["weight"], own["bias"], own.get("weight_c"), **how)


@pytest.mark.parametrize(
    ("options", "activation", "scale"),
    [
        ({"release": "2017"}, "tanh", 1.0),
        ({"release": "2017", "use_relu": 1}, "relu", 1.0),
        ({"release": "2017", "use_tanh": 0}, "identity", 1.0),
        ({"release": "2018"}, "tanh", math.sqrt(3)),
        ({"release": "2018", "use_relu": 1}, "tanh", math.sqrt(3)),
        ({"release": "2018", "use_tanh": 0, "use_selu": 1}, "selu", math.sqrt(3)),
        ({"release": "2018", "highway_bias": -2}, "tanh", math.sqrt(1 + 2 * math.exp(-2))),
        ({"rescale": False}, "tanh", 1.0),
    ],
    ids=str,
)
def test_code_from_before_2_0_has_no_v_and_recomputes_its_scale(
    tmp_path: Path, options: dict[str, Any], activation: str, scale: float
) -> None:
    layers = [layer(8, 12, 0, scale=None), layer(*SQUARE, 1, scale=None)]
    model = imported(tmp_path, stack(*layers), "encode", options=options)
    x = random(STEPS, 8, seed=5)
    expected = run(layers[0], x, activation=activation)
    expected = run(layers[1], expected, activation=activation, scale=scale)
    agree(hidden(model, x), expected)


@pytest.mark.parametrize("release", ["2018", "2.1.4", "2.1.7"])
def test_norms_and_gains_of_old_releases_have_their_own_formulas(
    tmp_path: Path, release: str
) -> None:
    layers = [layer(*SQUARE, i, scale=None if release == "2018" else 1.5) for i in range(2)]
    norms = [(random(12, seed=70 + i), random(12, seed=80 + i)) for i in range(2)]
    gains = [random(36, seed=90 + i).abs() for i in range(2)]
    tensors = stack(*({**own, "gain": gain} for own, gain in zip(layers, gains, strict=True)))
    for i, (a, b) in enumerate(norms):
        tensors |= {f"ln_lst.{i}.a": a, f"ln_lst.{i}.b": b}
    options = {"release": release, "layer_norm": True, "weight_norm": True, "rescale": True}
    model = imported(tmp_path, tensors, "encode", options=options)
    x = expected = random(STEPS, 12, seed=5)
    for own, (a, b), gain in zip(layers, norms, gains, strict=True):
        weight = gain * own["weight"] / own["weight"].pow(2).sum(0).sqrt()
        scale = math.sqrt(3) if release == "2018" else 1.5
        activation = "tanh" if release == "2018" else "identity"
        expected = run({**own, "weight": weight}, expected, scale=scale, activation=activation)
        expected = (norm_1 if release == "2018" else norm_2)(expected, a, b)
    agree(hidden(model, x), expected)


@pytest.mark.parametrize(
    ("options", "scale"),
    [
        ({"release": "2.1.4"}, 1.5),
        ({"release": "2.1.4", "rescale": False}, 1.5),
        ({"release": "2.1.7", "rescale": False}, 1.0),
        ({"release": "2.1.7"}, 1.5),
        ({"release": "2.6.0", "rescale": False}, 1.0),
        ({"release": "2.7.0-rc1", "rescale": False}, 1.0),
        ({"rescale": True}, 1.5),
        ({}, 1.5),
    ],
    ids=str,
)
def test_the_stored_scale_counts_by_release(
    tmp_path: Path, options: dict[str, Any], scale: float
) -> None:
    own = layer(*SQUARE, 0, scale=1.5)
    model = imported(tmp_path, stack(own), "encode", options=options)
    x = random(STEPS, 12, seed=5)
    agree(hidden(model, x), run(own, x, scale=scale))


@pytest.mark.parametrize(
    ("scale", "options"),
    [(1.5, {"rescale": False}), (None, {}), (None, {"use_relu": 1})],
    ids=str,
)
def test_a_release_is_requested_where_two_compute_differently(
    tmp_path: Path, scale: float | None, options: dict[str, Any]
) -> None:
    tensors = stack(layer(*SQUARE, 0, scale=scale))
    message = refused(tmp_path, tensors, "encode", options=options)
    assert '"release" of sru is not stored in a state dict: pass it in --options' in message
    assert ("2.0.0 to 2.1.4" if scale else "2018") in message


def test_no_release_is_requested_where_all_agree(tmp_path: Path) -> None:
    imported(tmp_path, stack(layer(*SQUARE, 0, scale=1.0)), "encode", options={})
    imported(tmp_path, stack(layer(8, 12, 0, scale=1.5)), "encode", options={})
    imported(tmp_path, stack(layer(8, 12, 0, scale=None)), "encode", options={})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"release": "1.0"}, "it must be a version such as"),
        ({"release": 2.1}, "it must be a version such as"),
        ({"release": "9" * 5000}, "it must be a version such as"),
        ({"release": "3.0.0.dev6"}, "the weights are of 2.0.0 to 2.1.4"),
        ({"release": "2017"}, "the weights are of 2.0.0 to 2.1.4"),
        ({"rescale": "maybe"}, "rescale is maybe; it must be true or false"),
        ({"rescale": True, "use_tanh": True, "use_relu": True}, "exclude each other"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_a_release_or_option_that_cannot_be_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    refusal = refused(tmp_path, stack(layer(*SQUARE, 0, scale=1.5)), "encode", options=options)
    assert message in refusal
    assert len(refusal) < 400


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    inputs=st.integers(4, 9),  # the norm of fewer is close to a step
    hidden_size=st.integers(4, 7),
    bidirectional=st.booleans(),
    normed=st.sampled_from(["no", "before", "after"]),
    skip=st.booleans(),
    tanh=st.booleans(),
    inner=st.integers(0, 6),
    turned=st.booleans(),
    data=st.data(),
)
def test_any_constructor_of_2_6_or_3_0_gives_the_cell_step_by_step(
    tmp_path_factory: pytest.TempPathFactory,
    inputs: int,
    hidden_size: int,
    bidirectional: bool,
    normed: str,
    skip: bool,
    tanh: bool,
    inner: int,
    turned: bool,
    data: st.DataObject,
) -> None:
    """turned: in the layout of 3.0, which projects in every layer with the option."""
    directions, count = 2 if bidirectional else 1, data.draw(st.integers(1, 3))
    width = hidden_size * directions
    x = expected = random(data.draw(st.integers(1, 12)), inputs, seed=3)
    tensors: dict[str, Tensor] = {}
    for i in range(count):
        reads = inputs if i == 0 else width
        blocks = 4 if skip and reads != width else 3
        projected = inner > 0 if turned else 0 < inner < min(reads, width)
        own = layer(reads, hidden_size, i, directions)
        own["weight"] = weight = random(reads, width * blocks, seed=i)
        if projected:
            left = random(reads, inner, seed=50 + i)
            right = random(inner, width * blocks, seed=60 + i)
            own |= {"weight_proj": left, "weight": right}
            weight = left @ right
        if turned:
            right = own.pop("weight").T.contiguous()
            if projected:
                left = own.pop("weight_proj").T.contiguous()
                own |= {"transform_module.0.weight": left, "transform_module.1.weight": right}
            else:
                own["transform_module.weight"] = right
        before = expected
        if normed != "no":
            size = width if normed == "after" else reads
            scale, shift = random(size, seed=30 + i), random(size, seed=40 + i)
            own |= {"layer_norm.weight": scale, "layer_norm.bias": shift}
            if normed == "before":
                before = F.layer_norm(expected, (reads,), scale, shift)
        expected = sru_layer(
            before,
            weight,
            own["bias"],
            own["weight_c"],
            activation="tanh" if tanh else "identity",
            directions=directions,
            skip=skip,
            residual=expected,
        )
        if normed == "after":
            expected = F.layer_norm(expected, (width,), scale, shift)
        tensors |= stack_at(i, own)
    options = {
        "bidirectional": bidirectional,
        "layer_norm": normed != "no",
        "normalize_after": normed == "after",
        "has_skip_term": skip,
        "use_tanh": tanh,
        "projection_size": inner,
        "input_size": inputs,
        "hidden_size": hidden_size,
        "num_layers": count,
    }
    model = imported(tmp_path_factory.mktemp("sru"), tensors, "encode", options=options)
    agree(hidden(model, x), expected)


def stack_at(index: int, own: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"rnn_lst.{index}.{name}": tensor for name, tensor in own.items()}


def test_a_projection_that_only_early_releases_ignored_is_read_from_the_weights() -> None:
    """Up to 2.1.7 it had to be below the width of one direction, later below that of both."""
    tensors = stack(layer(24, 12, 0, directions=2))
    options = {"bidirectional": True, "n_proj": 15}
    with pytest.raises(ModelError, match="weight_proj is missing"):
        sru.read(tensors, {**options, "release": "2.6.0"}, "encode")
    config = sru.read(tensors, {**options, "release": "2.1.4"}, "encode").rnn
    assert isinstance(config, SRUConfig)
    assert config.projection_size == 0


def test_layers_of_3_0_may_have_projections_of_different_widths() -> None:
    tensors: dict[str, Tensor] = {}
    for i, inner in enumerate([5, 0, 12]):
        own = layer(*SQUARE, i)
        weight = own.pop("weight")
        if inner:
            own["transform_module.0.weight"] = random(inner, 12, seed=1)
            own["transform_module.1.weight"] = random(36, inner, seed=2)
        else:
            own["transform_module.weight"] = weight.T
        tensors |= stack_at(i, own)
    for options in ({}, {"projection_size": [5, 0, 12]}):
        config = sru.read(tensors, options, "encode").rnn
        assert isinstance(config, SRUConfig)
        assert config.projection_size == (5, 0, 12)
    with pytest.raises(ModelError, match="the weights say 5"):
        sru.read(tensors, {"projection_size": [5, 0, 11]}, "encode")


@pytest.mark.parametrize(
    "names",
    [
        {"custom_m.weight": (36, 12)},
        {"custom_u.weight": (36, 12), "custom_v.weight": (24, 12)},
        {"transform_module.inner.weight": (36, 12)},
        {"transform_module.3.weight": (36, 12)},
    ],
    ids=lambda names: next(iter(names)),
)
def test_weights_of_custom_modules_are_refused(
    tmp_path: Path, names: dict[str, tuple[int, ...]]
) -> None:
    own = layer(*SQUARE, 0)
    del own["weight"]
    own |= {name: torch.ones(shape) for name, shape in names.items()}
    message = refused(tmp_path, stack(own), "encode", "--format", "sru", options={})
    assert "custom module" in message


def test_one_cell_alone_is_a_stack_of_one_layer(tmp_path: Path) -> None:
    own = layer(*SQUARE, 0, scale=1.5)
    model = imported(tmp_path, own, "encode", options={"use_tanh": True})
    x = random(STEPS, 12, seed=5)
    agree(hidden(model, x), run(own, x, scale=1.5, activation="tanh"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"weight": torch.ones(12, 36, dtype=torch.int64)},
        {"gain": torch.ones(36, dtype=torch.bool)},
        {"weight": torch.ones(12, 36, dtype=torch.complex64)},
    ],
    ids=["whole", "bool", "complex"],
)
def test_weights_of_no_floats_are_refused(tmp_path: Path, wrong: dict[str, Tensor]) -> None:
    own = layer(*SQUARE, 0, scale=1.0) | {"gain": torch.ones(36)} | wrong
    options = {"release": "2.1.4", "weight_norm": True}
    assert "not floats" in refused(tmp_path, stack(own), "encode", options=options)


def test_a_norm_that_is_one_number_is_refused(tmp_path: Path) -> None:
    own = layer(*SQUARE, 0) | {"layer_norm.weight": torch.tensor(1.0)}
    assert "layer_norm.weight has shape" in refused(tmp_path, stack(own), "encode", options={})
