"""Gates and the next layer's projection as one launch, with sums in fixed point."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.gpu.model import Size, random_decoder
from sruserve.kernels import candidates
from sruserve.kernels.candidates import Candidate
from sruserve.kernels.cell import Activation, Cell
from sruserve.kernels.decode import Decoder
from sruserve.kernels.layer import CellLayer
from sruserve.kernels.merged import MergedLayers
from sruserve.kernels.reference.fixed_point import fixed_limit, fixed_product, from_fixed
from sruserve.kernels.triton import merged
from sruserve.kernels.triton.merged import SPARE, merged_step
from sruserve.kernels.triton.step import triton_step
from sruserve.kernels.triton.tiles import LinearTile, merged_tile

INPUTS, WIDTH, NEXT, ROWS = 40, 36, 24, 2
SOURCE, TARGET = torch.tensor([3, -1]), torch.tensor([3, 1])
SMALL = Size(layers=4, width=20, projection=8, inputs=8, vocabulary=5)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    candidates.choose({Candidate.MERGED_STEP})
    yield
    candidates.choose(set())


def layer(dtype: torch.dtype, **options: Any) -> dict[str, Any]:
    cell = Cell(**options)
    return {
        "x": torch.randn(ROWS, INPUTS).to(dtype),
        "weight": (torch.randn(cell.blocks * WIDTH, INPUTS) * 0.3).to(dtype),
        "residual": torch.randn(ROWS, WIDTH).to(dtype) if cell.takes_residual else None,
        "weight_c": torch.randn(2, WIDTH),
        "bias": torch.randn(2, WIDTH),
        "states": torch.randn(5, WIDTH + 7),
        "source": SOURCE,
        "target": TARGET,
        "column": 7,
        "cell": cell,
    }


def unmerged(arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """h and the states after the launch that is not merged, with the same tile."""
    states = arguments["states"].clone()
    named = arguments | {"states": states, "weight_bias": None}
    return triton_step(**named, tile=merged_tile(ROWS)), states


def weight_of_next(dtype: torch.dtype) -> Tensor:
    return (torch.randn(NEXT, WIDTH) * 0.4).to(dtype)


def sums_for(columns: int) -> Tensor:
    return torch.zeros(ROWS, columns + SPARE, dtype=torch.int64)


def onto(sums: Tensor, weight: Tensor) -> dict[str, Any]:
    return {
        "next_weight": weight.T.contiguous(),
        "next_sums": sums,
        "limit": fixed_limit(weight),
    }


@DTYPES
@pytest.mark.parametrize(
    "options",
    [{"scale": 1.3}, {"blocks": 4, "activation": Activation.TANH}, {"updated_reset": True}],
    ids=str,
)
def test_a_launch_has_the_bits_of_a_step_and_of_the_fixed_point_reference(
    dtype: torch.dtype, options: dict[str, Any]
) -> None:
    arguments, weight, sums = layer(dtype, **options), weight_of_next(dtype), sums_for(NEXT)
    h, states = unmerged(arguments)
    result = merged_step(**arguments, **onto(sums, weight), tile=merged_tile(ROWS))
    assert torch.equal(result, h)
    assert torch.equal(arguments["states"], states)
    expected, misfits = fixed_product(h, weight)
    assert torch.equal(sums[:, :NEXT], expected)
    assert not misfits.any()
    assert not sums[:, NEXT:].any()


@DTYPES
def test_a_launch_reads_the_sums_of_the_one_before(dtype: torch.dtype) -> None:
    arguments = layer(dtype)
    sums, misfits = fixed_product(
        torch.randn(ROWS, 60).to(dtype), torch.randn(INPUTS, 60).to(dtype)
    )
    kept = torch.cat((sums, misfits.unsqueeze(1), misfits.unsqueeze(1)), 1)
    h, states = unmerged(arguments | {"x": from_fixed(sums, misfits, dtype)})
    result = merged_step(**(arguments | {"x": kept}), tile=merged_tile(ROWS))
    assert torch.equal(result, h)
    assert torch.equal(arguments["states"], states)


def test_no_tile_changes_a_bit_of_the_sums() -> None:
    weight, every = weight_of_next(torch.float32), []
    for columns in (4, 16, 32):
        torch.manual_seed(1)
        arguments, sums = layer(torch.float32), sums_for(NEXT)
        tile = LinearTile(2, columns, 64, 1, 4, vector=True)
        merged_step(**arguments, **onto(sums, weight), tile=tile)
        every.append(sums)
    assert all(torch.equal(each, every[0]) for each in every)


@DTYPES
def test_the_error_of_sums_is_below_a_bound_that_the_reference_states(dtype: torch.dtype) -> None:
    h, weight = torch.randn(3, 2000).to(dtype), (torch.randn(50, 2000) / 45).to(dtype)
    exact = h.double() @ weight.double().T
    sums, misfits = fixed_product(h, weight)
    error = (sums.double() * 2.0**-32 - exact).abs()
    rounding = 0.0 if dtype is torch.float16 else 2.0**-24
    bound = 2000 * 2.0**-32 + rounding * (h.double().abs() @ weight.double().abs().T)
    assert not misfits.any()
    assert (error < bound).all()
    assert (exact.float() - from_fixed(sums, misfits, torch.float32)).abs().max() < 2e-6


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 3e9, -3e9])
def test_an_output_that_does_not_fit_makes_its_own_row_nan(bad: float) -> None:
    arguments, sums = layer(torch.float32), sums_for(NEXT)
    arguments["x"].zero_()
    arguments["residual"][1, 5] = bad
    arguments["bias"][1] = -30.0  # h is the residual
    weight = torch.ones(NEXT, WIDTH)
    h = merged_step(**arguments, **onto(sums, weight), tile=merged_tile(ROWS))
    expected, misfits = fixed_product(h, weight)
    assert torch.equal(sums[:, :NEXT], expected)
    assert sums[:, NEXT].tolist() == misfits.tolist() == [0, 1]
    following = layer(torch.float32)
    following["weight"] = torch.randn(3 * WIDTH, NEXT)
    after = merged_step(**(following | {"x": sums}), tile=merged_tile(ROWS))
    assert after[0].isfinite().all()
    assert after[1].isnan().all()


def decoders(fast: bool = True) -> tuple[Decoder, Decoder]:
    """The same model with merged launches and without, each with its own states."""
    torch.manual_seed(2)
    states = torch.randn(6, SMALL.state_width)
    plain, joined = (random_decoder(SMALL, torch.float32, states.clone(), fast) for _ in range(2))
    return replace(plain, merged=None), joined


def test_steps_of_a_model_are_those_of_fast_to_rounding_whatever_was_computed_before() -> None:
    plain, joined = decoders()
    assert joined.merged is not None
    for rows, tokens in (([0, 1], [3, 4]), ([2], [1]), ([0, 2], [2, 2])):
        inputs = torch.tensor(tokens), torch.tensor(rows), torch.tensor(rows)
        torch.testing.assert_close(
            joined.logits(*inputs), plain.logits(*inputs), atol=2e-5, rtol=1e-5
        )
        torch.testing.assert_close(joined.states, plain.states, atol=2e-5, rtol=1e-5)


def test_each_layer_of_a_step_has_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    size = replace(SMALL, layers=12, width=16, projection=8)
    decoder = random_decoder(size, torch.float32, torch.randn(2, size.state_width), fast=True)
    launches = []
    run = merged.merged_step

    def noted(*args: Any, **options: Any) -> Tensor:
        launches.append("merged")
        return run(*args, **options)

    monkeypatch.setattr(merged, "merged_step", noted)
    row = torch.tensor([0])
    decoder.logits(row, row, row)
    assert len(launches) == 12  # the head and the sampler are two more


def test_a_step_that_fails_midway_leaves_nothing_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, joined = decoders()
    row, calls, run = torch.tensor([0]), 0, merged.merged_step

    def failing(*args: Any, **options: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise MemoryError
        return run(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(merged, "merged_step", failing)
        with pytest.raises(MemoryError):
            joined.logits(row, row, torch.tensor([-1]))
    inputs = row, torch.tensor([2]), torch.tensor([2])
    torch.testing.assert_close(joined.logits(*inputs), plain.logits(*inputs), atol=2e-5, rtol=1e-5)


def test_more_streams_and_other_models_run_as_before() -> None:
    plain, joined = decoders()
    rows = torch.arange(3)
    assert torch.equal(joined.logits(rows, rows, rows), plain.logits(rows, rows, rows))
    assert decoders(fast=False)[1].merged is None
    layers = [each for each in joined.layers if isinstance(each, CellLayer)]
    assert MergedLayers.of(layers[:2]) is None
    assert MergedLayers.of([layers[0], replace(layers[1], projection=None), *layers[2:]]) is None
    assert MergedLayers.of([*layers[:3], replace(layers[3], inner_bias=torch.ones(1))]) is None
    assert MergedLayers.of(layers) is not None
    assert MergedLayers.of(layers, max_width=SMALL.projection - 1) is None
    candidates.choose(set())
    assert MergedLayers.of(layers) is None
