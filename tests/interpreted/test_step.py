from typing import Any

import pytest
import torch
from torch import Tensor

from sruserve.kernels.cell import Activation, Cell, Kind
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.reference.scan import reference_scan
from sruserve.kernels.triton.linear import triton_linear
from sruserve.kernels.triton.scan import triton_scan
from sruserve.kernels.triton.step import triton_step
from sruserve.kernels.triton.tiles import LinearTile

DOTS = LinearTile(rows=16, columns=16, depth=32, stages=2, warps=4)
VECTOR = LinearTile(rows=4, columns=4, depth=64, stages=1, warps=4, vector=True)
FORMS = pytest.mark.parametrize("tile", [DOTS, VECTOR], ids=["dots", "vector"])
INPUTS, WIDTH, COLUMN, STATE_WIDTH = 40, 20, 6, 30
SOURCE = torch.tensor([0, -1, 3, 4, 2, 7])
TARGET = torch.tensor([0, 1, -1, 4, 6, 5])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


TANH = Activation.TANH


def layer(
    blocks: int = 3, skip: bool = True, dtype: torch.dtype = torch.float32, **options: Any
) -> dict[str, Any]:
    rows, cell = len(SOURCE), Cell(blocks=blocks, **options)
    gated = cell.gated_by_state
    return {
        "x": torch.randn(rows, INPUTS).to(dtype),
        "weight": (torch.randn(blocks * WIDTH, INPUTS) * 0.3).to(dtype),
        "weight_bias": None if gated else torch.randn(blocks * WIDTH).to(dtype),
        "residual": torch.randn(rows, WIDTH).to(dtype) if skip and cell.takes_residual else None,
        "weight_c": torch.randn(2, WIDTH) if gated else None,
        "bias": torch.randn(2, WIDTH) if gated else None,
        "states": torch.randn(9, STATE_WIDTH),
        "source": SOURCE,
        "target": TARGET,
        "column": COLUMN,
        "cell": cell,
    }


def expected(layer: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """h and the states of the same step by the reference."""
    states = layer["states"].clone()
    batch = RaggedBatch(torch.arange(len(SOURCE) + 1), states, layer["source"], layer["target"])
    u = layer["x"].float() @ layer["weight"].float().T
    if layer["weight_bias"] is not None:
        u += layer["weight_bias"]
    named = (layer["weight_c"], layer["bias"], batch, layer["column"], layer["cell"])
    return reference_scan(u.to(layer["x"].dtype), layer["residual"], *named), states


@FORMS
@pytest.mark.parametrize(
    ("blocks", "skip", "options"),
    [
        (3, True, {}),
        (3, True, {"scale": 1.7, "activation": TANH}),
        (3, False, {"updated_reset": True}),
        (4, False, {}),
        (4, False, {"activation": TANH, "updated_reset": True}),
        (3, False, {"kind": Kind.LRN, "activation": TANH}),
        (4, False, {"kind": Kind.LRN, "activation": Activation.SELU}),
        (2, False, {"kind": Kind.QRNN, "zoneout": 0.3}),
        (3, True, {"kind": Kind.QRNN, "scale": 1.3}),
        (1, False, {"kind": Kind.SHIFT}),
    ],
    ids=[
        *("plain", "scaled tanh", "no skip", "wide highway", "every option"),
        *("lrn", "olrn", "qrnn", "qrnn with a residual", "shift"),
    ],
)
def test_a_step_is_the_reference_after_a_product(
    tile: LinearTile, blocks: int, skip: bool, options: dict[str, Any]
) -> None:
    arguments = layer(blocks, skip, **options)
    h, states = expected(arguments)
    out = torch.full((len(SOURCE), WIDTH), torch.nan)
    assert triton_step(**arguments, out=out, tile=tile) is out
    torch.testing.assert_close(out, h, atol=3e-6, rtol=1e-6)
    torch.testing.assert_close(arguments["states"], states, atol=3e-6, rtol=1e-6)


@FORMS
def test_a_step_touches_no_other_column_and_no_other_row(tile: LinearTile) -> None:
    arguments = layer(3)
    before = arguments["states"].clone()
    triton_step(**arguments, tile=tile)
    changed = arguments["states"] != before
    assert changed[TARGET[TARGET >= 0], COLUMN : COLUMN + WIDTH].all()
    assert changed.sum() == (TARGET >= 0).sum() * WIDTH


@FORMS
def test_a_row_that_starts_from_zeros_reads_no_state(tile: LinearTile) -> None:
    arguments = layer(3)
    arguments["states"].fill_(torch.nan)
    arguments["source"] = torch.full_like(SOURCE, -1)
    assert triton_step(**arguments, tile=tile).isfinite().all()
    assert arguments["states"][TARGET[TARGET >= 0], COLUMN : COLUMN + WIDTH].isfinite().all()


@FORMS
def test_indices_gather_the_input_and_the_residual_each_for_itself(tile: LinearTile) -> None:
    arguments = layer(3)
    x, residual = arguments["x"], arguments["residual"]
    x_index, residual_index = torch.tensor([3, 3, 0, 5, 2, 1]), torch.tensor([1, 0, 5, 5, 2, 4])
    again = dict(arguments, x=x[x_index], residual=residual[residual_index])
    again["states"] = arguments["states"].clone()
    indexed = triton_step(**arguments, x_index=x_index, residual_index=residual_index, tile=tile)
    assert torch.equal(indexed, triton_step(**again, tile=tile))
    assert torch.equal(arguments["states"], again["states"])


@FORMS
def test_a_stream_has_the_same_bits_alone_and_in_company(tile: LinearTile) -> None:
    arguments = layer(4)
    alone = {name: value for name, value in arguments.items() if name != "states"}
    states = arguments["states"].clone()
    together = triton_step(**arguments, tile=tile)
    for row in range(len(SOURCE)):
        alone |= {name: arguments[name][row : row + 1] for name in ("x", "source", "target")}
        h = triton_step(**alone, states=states, tile=tile)
        assert torch.equal(h[0], together[row])
    assert torch.equal(states, arguments["states"])


@pytest.mark.parametrize(
    "options",
    [{"scale": 1.3}, {"blocks": 4}, {"kind": Kind.LRN}, {"kind": Kind.QRNN, "scale": 1.3}],
    ids=str,
)
def test_a_step_in_half_precision_is_the_product_and_the_scan(options: dict[str, Any]) -> None:
    """Bit for bit: both round the product to the dtype before the gates."""
    arguments = layer(dtype=torch.float16, **options)
    states = arguments["states"].clone()
    batch = RaggedBatch(torch.arange(len(SOURCE) + 1), states, SOURCE, TARGET)
    u = triton_linear(arguments["x"], arguments["weight"], arguments["weight_bias"], tile=DOTS)
    named = (arguments["weight_c"], arguments["bias"], batch, COLUMN, arguments["cell"])
    h = triton_scan(u, arguments["residual"], *named)
    assert torch.equal(triton_step(**arguments, tile=DOTS), h)
    assert torch.equal(arguments["states"], states)


def test_no_streams_are_no_work() -> None:
    arguments = layer(3)
    arguments |= {name: arguments[name][:0] for name in ("x", "residual", "source", "target")}
    assert triton_step(**arguments).shape == (0, WIDTH)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.zeros(50, INPUTS)}, "weight must have a multiple of 3 rows, not 50"),
        ({"weight_bias": torch.zeros(7)}, r"weight_bias must have shape \(60,\)"),
        ({"bias": None}, "SRU cells need weight_c and bias"),
        ({"cell": Cell(kind=Kind.LRN)}, "LRN cells take neither"),
        ({"weight": torch.zeros(3 * WIDTH, 7)}, "x and weight must be"),
        ({"bias": torch.zeros(2, 3)}, "bias must have"),
        ({"weight_c": torch.zeros(2, WIDTH).half()}, "weight_c must have"),
        ({"column": 11}, "columns 11 to"),
        ({"column": -1}, "columns -1 to"),
        ({"source": SOURCE[:3]}, r"source must have shape \(6,\) and dtype int64"),
        ({"target": TARGET.int()}, "target must have"),
        ({"residual": torch.zeros(6, 3)}, "residual must have shape"),
        ({"residual": torch.zeros(5, WIDTH)}, "residual must have 6 rows"),
        ({"residual": None, "residual_index": SOURCE}, "residual_index needs a residual"),
        ({"residual_index": SOURCE[:2]}, "residual_index must have"),
        ({"out": torch.zeros(6, 3)}, "out must have"),
        ({"states": torch.zeros(STATE_WIDTH, 9).T}, "states must be contiguous"),
        ({"x_index": SOURCE.to("meta")}, "x_index must be on cpu"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        triton_step(**(layer(3) | change))


def test_a_residual_beside_a_wide_highway_is_refused() -> None:
    with pytest.raises(ValueError, match="take no residual"):
        triton_step(**(layer(4) | {"residual": torch.zeros(6, WIDTH)}))
