"""Products with int8 weights: exact integers, with any instruction set, rows and threads."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import sruserve.kernels.cpu.library as cpu
from sruserve.kernels import CellLayer, RaggedBatch
from sruserve.kernels.cpu.integer_product import integer_product, integer_work
from sruserve.kernels.cpu.stack import CompiledStack, compilable
from sruserve.kernels.integer_linear import IntegerLinear
from sruserve.kernels.linear import LinearOp, PanelLinear, make_linear
from sruserve.kernels.quantized_weight import (
    MAX_INPUTS,
    QuantizedWeight,
    dequantize_rows,
    is_rounded,
    quantize_rows,
)
from tests.kernels.instruction_sets import BEST, EACH_SET, HERE, use
from tests.kernels.test_stack import (
    EACH_FORM,
    FORMS,
    LENGTHS,
    WIDTH,
    check_slices,
    ragged,
    stack_of,
)

SHAPES = [(1, 1), (3, 5), (4, 16), (5, 17), (64, 64), (70, 200), (129, 113), (513, 65), (1024, 33)]
ROWS = (1, 2, 3, 5, 6, 7, 12, 13, 47, 48, 49, 97, 300)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Restore torch's number of threads, and the instruction set."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    assert use(BEST)


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def packed(weight: Tensor, bias: Tensor | None = None) -> QuantizedWeight:
    """Pack a weight that is rounded first."""
    quantized = QuantizedWeight.of(dequantize_rows(*quantize_rows(weight)), bias)
    assert quantized is not None
    return quantized


def reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The definition: rows become round(127 x / max|x|), and their products are exact integers."""
    numbers, scale = quantize_rows(weight)
    largest = x.abs().amax(1, keepdim=True)
    up = torch.where(largest > 1e-30, 127.0 / largest, 0.0)
    rounded = torch.where(up > 0, x * up, 0.0).round()
    sums = rounded.double() @ numbers.double().T  # exact below 2⁵³
    product = sums.float() * (largest * torch.tensor(1 / 127) * scale)
    return product + (torch.zeros(len(weight)) if bias is None else bias)


@EACH_SET
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_product_is_the_exact_one_of_its_rounded_rows(
    inputs: int, outputs: int, threads: int
) -> None:
    torch.set_num_threads(threads)
    weight, bias, x = random(outputs, inputs), random(outputs, seed=1), random(300, inputs, seed=2)
    x *= 10.0 ** torch.linspace(-6, 6, 300)[:, None]
    for own in (bias, None):
        quantized, expected = packed(weight, own), reference(x, weight, own)
        for rows in ROWS:
            product = integer_product(x[:rows], quantized)
            assert torch.equal(product, expected[:rows]), f"{rows} rows"


@EACH_SET
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_sums_do_not_saturate(sign: float) -> None:
    inputs = 4099
    weight = torch.full((20, inputs), 127.0)
    weight[1::2] = -127.0
    x = torch.full((7, inputs), sign)
    expected = sign * torch.where(torch.arange(20) % 2 == 0, 1.0, -1.0) * 127 * inputs
    product = integer_product(x, packed(weight))
    torch.testing.assert_close(product, expected.expand(7, 20), rtol=1e-6, atol=0)


@EACH_SET
def test_as_many_inputs_as_allowed_do_not_overflow() -> None:
    weight, x = torch.ones(2, MAX_INPUTS), torch.ones(2, MAX_INPUTS)
    weight[1] = -1
    expected = torch.tensor([MAX_INPUTS, -MAX_INPUTS]).float().expand(2, 2)
    torch.testing.assert_close(integer_product(x, packed(weight)), expected, rtol=1e-6, atol=0)
    assert QuantizedWeight.of(torch.ones(2, MAX_INPUTS + 1), None) is None


def test_every_instruction_set_gives_the_same_bits() -> None:
    weight, x = random(113, 70), random(65, 70, seed=1)
    results = []
    for name in HERE:
        assert use(name)
        results.append(integer_product(x, packed(weight)))
    for other in results[1:]:
        assert torch.equal(other, results[0])


@EACH_SET
def test_a_product_is_near_that_of_the_floats() -> None:
    weight, bias, x = random(96, 512), random(96, seed=1), random(40, 512, seed=2)
    exact = x @ weight.T + bias
    error = integer_product(x, packed(weight, bias)) - exact
    assert float(error.norm() / exact.norm()) < 0.015


@EACH_SET
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_becomes_nan_and_no_other_row_does(broken: float) -> None:
    x = random(9, 70)
    quantized = packed(random(33, 70, seed=1))
    expected = integer_product(x, quantized)
    x[4, 69] = broken
    product = integer_product(x, quantized)
    assert product[4].isnan().all()
    others = torch.arange(9) != 4
    assert torch.equal(product[others], expected[others])


@EACH_SET
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 1e-31, 3e38, -3e38])
def test_rows_of_zeros_and_of_extreme_numbers_are_multiplied(value: float) -> None:
    weight, bias = torch.full((3, 8), 0.5), torch.ones(3)
    weight[2] = 0
    x = torch.zeros(2, 8)
    x[0, 3] = value
    product = integer_product(x, packed(weight, bias))
    expected = (x.double() @ weight.double().T + 1).float()
    torch.testing.assert_close(product, expected, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("magnitude", [1e-25, 1.0, 3e38])
def test_rounding_a_rounded_weight_changes_nothing(magnitude: float) -> None:
    weight = random(50, 40) * (magnitude / 5)
    weight[7] = 0
    numbers, scale = quantize_rows(weight)
    restored = dequantize_rows(numbers, scale)
    assert numbers.abs().amax(1).tolist() == [127 if i != 7 else 0 for i in range(50)]
    again, same_scale = quantize_rows(restored)
    assert is_rounded(numbers, scale)
    assert torch.equal(again, numbers)
    assert torch.equal(same_scale, scale)
    assert float((restored - weight).abs().max()) <= 0.51 * float(scale[scale != 1].max())


@pytest.mark.parametrize(
    ("numbers", "scale"),
    [
        ([126, 3], 1.0),
        ([-128, 3], 1.0),
        ([-128, 127], 1.0),
        ([0, 0], 2.0),
        ([127, 3], 1 / 3),
        ([127, 3], 2.0**125),
        ([127, 3], 2.0**-107),
    ],
)
def test_numbers_that_rounding_never_gives_are_recognised(numbers: list[int], scale: float) -> None:
    good = torch.tensor([[127, -127], [-127, 0], [0, 0]], dtype=torch.int8)
    scales = torch.tensor([0.5, 2.0**-106, 1.0])
    assert is_rounded(good, scales)
    rows = torch.cat((good, torch.tensor([numbers], dtype=torch.int8)))
    scales = torch.cat((scales, torch.tensor([scale])))
    assert not is_rounded(rows, scales)
    restored = dequantize_rows(rows, scales)
    again = quantize_rows(restored.nan_to_num(posinf=0))
    assert not (torch.equal(again[0], rows) and torch.equal(again[1], scales))


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_weight_that_int8_cannot_express_is_multiplied_in_floats(broken: float) -> None:
    weight, device = random(5, 8), torch.device("cpu")
    assert QuantizedWeight.of(weight, None) is None
    linear = make_linear(weight, None, torch.float32, integer=True)
    assert not isinstance(linear, IntegerLinear)
    rounded = dequantize_rows(*quantize_rows(weight))
    assert isinstance(make_linear(rounded, None, torch.float32, integer=True), IntegerLinear)
    assert not isinstance(make_linear(rounded, None, torch.float32), IntegerLinear)
    narrow = make_linear(rounded, None, torch.bfloat16, device, integer=True)
    assert not isinstance(narrow, IntegerLinear)
    rounded[0, 0] = broken
    assert QuantizedWeight.of(rounded, None) is None


@pytest.mark.parametrize("missing", ["uses_triton", "available"])
def test_on_a_gpu_and_without_the_compiled_kernel_weights_are_multiplied_in_floats(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "uses_triton":
        monkeypatch.setattr("sruserve.kernels.integer_linear.uses_triton", lambda _: True)
    else:
        monkeypatch.setattr(cpu, "_library", None)
    rounded = dequantize_rows(*quantize_rows(random(5, 8)))
    linear = make_linear(rounded, None, torch.float32, integer=True)
    assert not isinstance(linear, IntegerLinear)


def test_rows_and_work_memory_that_do_not_fit_are_refused() -> None:
    quantized = packed(random(30, 20))
    for x in (random(7, 21), random(7, 20).double()):
        with pytest.raises(ValueError, match=r"product: x must be \(rows, 20\), float32"):
            integer_product(x, quantized)
    x = random(20, 7).T
    assert torch.equal(integer_product(x, quantized), integer_product(x.contiguous(), quantized))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "sruserve.kernels.cpu.integer_product.integer_work",
            lambda rows, inputs: integer_work(rows, inputs) - 1,
        )
        with pytest.raises(ValueError, match="the work memory is too small"):
            integer_product(x, quantized)


def rounded_layer(layer: CellLayer, **parts: Any) -> CellLayer:
    """The layer with products in integers."""

    def integer(linear: LinearOp, seed: int) -> IntegerLinear:
        weight = random(linear.outputs, linear.inputs, seed=seed) / linear.inputs**0.5
        return IntegerLinear(packed(weight, random(linear.outputs, seed=4)))

    fields = {name: getattr(layer, name) for name in CellLayer.__slots__} | parts
    fields["linear"] = integer(layer.linear, 3)
    if layer.projection is not None:
        fields["projection"] = integer(layer.projection, 5)
    return CellLayer(**fields)


@EACH_SET
@EACH_FORM
def test_a_stack_of_integer_layers_has_the_results_of_its_layers(form: dict[str, Any]) -> None:
    layers = [rounded_layer(layer) for layer in stack_of(form)]
    assert compilable(layers)
    x, compiled, separate = random(sum(LENGTHS), WIDTH, seed=9), ragged(), ragged()
    expected = x
    for each in layers:
        expected = each(expected, separate)
    # A norm sums in another order; then a number may be rounded to the next byte.
    exact = all(layer.norm is None and layer.inner_norm is None for layer in layers)
    result = CompiledStack(layers, None)(x, compiled)
    tolerance = 0 if exact else 0.05
    torch.testing.assert_close(result, expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(compiled.states, separate.states, rtol=0, atol=tolerance)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_sequence_has_the_same_bits_alone_in_company_and_split(threads: int, mixed: bool) -> None:
    torch.set_num_threads(threads)
    first, second = stack_of(FORMS["projection"])
    stack = CompiledStack([rounded_layer(first), second if mixed else rounded_layer(second)], None)
    together, x = ragged(), random(sum(LENGTHS), WIDTH, seed=9)
    whole = stack(x, together)
    states, row, cut = ragged().states, torch.tensor([4]), 20
    begin = sum(LENGTHS[:4])
    target = row + len(LENGTHS)
    parts = [
        stack(x[begin : begin + cut], RaggedBatch(torch.tensor([0, cut]), states, row, target)),
        stack(
            x[begin + cut : begin + LENGTHS[4]],
            RaggedBatch(torch.tensor([0, LENGTHS[4] - cut]), states, target, target),
        ),
    ]
    assert torch.equal(torch.cat(parts), whole[begin : begin + LENGTHS[4]])
    assert torch.equal(states[target], together.states[target])


def test_integer_sequences_in_slices_have_the_bits_of_single_ones() -> None:
    first, second = stack_of(FORMS["projection"])
    check_slices(CompiledStack([rounded_layer(first), second], None))


@EACH_FORM
def test_integer_products_picked_by_id_have_the_bits_of_new_ones(form: dict[str, Any]) -> None:
    table, ids = random(300, WIDTH, seed=9), torch.arange(sum(LENGTHS)) * 7 % 300
    stack = CompiledStack([rounded_layer(layer) for layer in stack_of(form)], table)
    assert stack.spared
    assert torch.equal(stack(ids, ragged()), stack(table[ids], ragged()))


def test_a_stack_refuses_work_memory_that_is_too_small() -> None:
    stack = CompiledStack([rounded_layer(layer) for layer in stack_of(FORMS["sru"])], None)
    stack._row_work -= 1
    batch = ragged()
    before = batch.states.clone()
    with pytest.raises(ValueError, match="the work memory is too small"):
        stack(random(sum(LENGTHS), WIDTH), batch)
    assert torch.equal(batch.states, before)


def test_a_float_stack_needs_no_memory_for_bytes() -> None:
    layers = stack_of(FORMS["sru"])
    assert all(isinstance(layer.linear, PanelLinear) for layer in layers)
    assert CompiledStack(layers, None)._row_work == 4 * WIDTH + 3 * WIDTH
