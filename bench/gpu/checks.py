"""Checks before any measurement: the scan and the matrix products compute the right results."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from bench.gpu.context import Bench
from bench.gpu.reference import Form, exact_scan, relative_error
from bench.report.targets import Check, Target
from sruserve.kernels import Cell, RaggedBatch, make_linear, scan

FORMS = (
    Form(name="plain", scale=1.25),
    Form(name="four blocks", blocks=4),
    Form(name="no skip", skip=False),
    Form(name="tanh", tanh=True),
    Form(name="updated reset", updated_reset=True),
    Form(name="both directions", bidirectional=True),
)
_H = {torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.float16: 6e-4}  # the rounding error of h
_C = 1e-5  # states are float32 for every dtype of h
_SUMS = 1e-4  # float32 sums of products; tensor cores round each addition down
EXACTLY = Target(maximum=0)


def kernel_checks(bench: Bench) -> Iterator[Check]:
    """Check the scan in every form and dtype, and products, against float64; and equal bits."""
    for dtype in dtypes(bench):
        forms = FORMS if dtype is not torch.float16 else FORMS[:1]
        for form in forms[:2] if bench.quick else forms:
            yield from _scan(bench, form, dtype)
        yield from _scan_bits(bench, dtype)
        yield from _linear(bench, dtype)


def dtypes(bench: Bench) -> Sequence[torch.dtype]:
    """Return the dtypes to check; the interpreter has no 16-bit arithmetic."""
    return tuple(_H) if bench.on_gpu else (torch.float32,)


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def differing(a: Tensor, b: Tensor) -> float:
    """Return the number of elements with different bits; two NaNs count as equal."""
    return float(((a != b) & ~(a.isnan() & b.isnan())).sum())


def unlike(bench: Bench, a: Tensor, b: Tensor) -> float:
    """Return the number of elements with different bits, on a GPU.

    In the interpreter, where the order of a product's sum depends on the block's shape, return the
    number of elements that are not close.
    """
    if bench.on_gpu:
        return differing(a, b)
    close = torch.isclose(a.double(), b.double(), rtol=1e-4, atol=1e-5, equal_nan=True)
    return float((~close).sum())


def _scan(bench: Bench, form: Form, dtype: torch.dtype) -> Iterator[Check]:
    """Check a ragged batch over poisoned memory, with rows of padding after it."""
    lengths = [5, 0, 1, 9] if bench.quick else [37, 0, 1, 200, 64, 9]
    width = 40 if bench.quick else 160
    rows, column, count = sum(lengths), width, len(lengths)
    u = bench.random(rows + 3, form.blocks * width, dtype=dtype)
    residual = bench.random(rows + 3, width, dtype=dtype)
    weight_c = bench.random(2, width, dtype=torch.float32)
    bias = bench.random(2, width, dtype=torch.float32)
    source, target = bench.arange(count, 2), bench.arange(count, 2) + 1
    source[1], target[0], target[2] = -1, source[0], -1
    states = bench.random(2 * count, 3 * width, dtype=torch.float32)
    states[1::2] = float("nan")
    offsets = torch.tensor([0, *accumulate(lengths)], device=bench.device)
    batch = RaggedBatch(offsets, states, source, target)
    skip = residual if form.skip and form.blocks == 3 else None
    h, after = exact_scan(form, u, skip, weight_c, bias, batch, column)
    out = torch.full((rows + 3, width), float("nan"), dtype=dtype, device=bench.device)
    scan(
        u, skip, weight_c, bias, batch, column, form.cell,
        backward_from=width // 2 if form.bidirectional else None, out=out,
    )  # fmt: skip
    label = f"scan, {form.name}, {name(dtype)}"
    written = target[target >= 0].cpu()
    place = slice(column, column + width)
    result_states = states.cpu()
    error = relative_error(out[:rows], h[:rows])
    yield Check(f"{label}: error of h", error, "", Target(maximum=_H[dtype]))
    error = relative_error(result_states[written, place], after[written, place])
    yield Check(f"{label}: error of c", error, "", Target(maximum=_C))
    result_states[written, place] = after[written, place].float()
    stray = differing(result_states, after.float()) + float((~out[rows:].isnan()).sum())
    yield Check(f"{label}: written where nothing belongs", stray, "elements", EXACTLY)


def _scan_bits(bench: Bench, dtype: torch.dtype) -> Iterator[Check]:
    """Check equal bits: many sequences at once, one alone, one cut in two, and a second run."""
    count, steps, width = (3, 7, 40) if bench.quick else (20, 65, 1024)
    u = bench.random(count * steps, 3 * width, dtype=dtype)
    x = bench.random(count * steps, width, dtype=dtype)
    weight_c = bench.random(2, width, dtype=torch.float32)
    bias = bench.random(2, width, dtype=torch.float32)

    def run(states: Tensor, rows: slice, first: int, last: int, start: int) -> Tensor:
        each = bench.arange(last - first)
        source = each if start < 0 else each + start
        batch = RaggedBatch(
            bench.arange(last - first + 1, (rows.stop - rows.start) // (last - first)),
            states[first:last],
            torch.full_like(source, -1) if start < 0 else source,
            each,
        )
        return scan(u[rows], x[rows], weight_c, bias, batch, 0, Cell())

    states = bench.random(count, width, dtype=torch.float32)
    h = run(states, slice(0, count * steps), 0, count, -1)
    again = bench.random(count, width, dtype=torch.float32)
    h_again = run(again, slice(0, count * steps), 0, count, -1)
    label = f"scan, {name(dtype)}: elements that"
    changed = differing(h, h_again) + differing(states, again)
    yield Check(f"{label} a second run changes", changed, "", EXACTLY)
    alone = bench.random(count, width, dtype=torch.float32)
    changed = 0.0
    for sequence in (0, count - 1):
        begin, end = sequence * steps, (sequence + 1) * steps
        cut = begin + steps // 3
        changed += differing(
            run(alone, slice(begin, cut), sequence, sequence + 1, -1), h[begin:cut]
        )
        changed += differing(run(alone, slice(cut, end), sequence, sequence + 1, 0), h[cut:end])
        changed += differing(alone[sequence], states[sequence])
    yield Check(f"{label} other sequences and a cut in time change", changed, "", EXACTLY)


def _linear(bench: Bench, dtype: torch.dtype) -> Iterator[Check]:
    """Check sizes that are multiples of the blocks, and sizes that are not."""
    sizes = ((5, 40, 24),) if bench.quick else ((300, 512, 1536), (77, 100, 130), (260, 2048, 512))
    for rows, inputs, outputs in sizes:
        x = bench.random(rows, inputs, dtype=dtype)
        weight = bench.random(outputs, inputs, dtype=dtype, spread=inputs**-0.5)
        bias = bench.random(outputs, dtype=dtype)
        linear = make_linear(weight, bias, dtype, bench.device)
        index = torch.randint(0, rows, (rows + 3,), device=bench.device)
        y = linear(x)
        exact = x.cpu().double() @ weight.cpu().double().T + bias.cpu().double()
        label = f"product, {rows} x {inputs} x {outputs}, {name(dtype)}"
        error = relative_error(y, exact)
        yield Check(f"{label}: error", error, "", Target(maximum=_H[dtype]))
        error = relative_error(linear.step(x, index, torch.float32), exact[index.cpu()])
        yield Check(f"{label}: error of a step, in float32", error, "", Target(maximum=_SUMS))
        changed = unlike(bench, linear(x), y) + unlike(bench, linear.step(x, index), y[index])
        for few in {1, 2, 17, 64, 65, 129} & set(range(rows)):
            changed += unlike(bench, linear(x[:few]), y[:few])
            changed += unlike(bench, linear.step(x[:few]), y[:few])
        yield Check(f"{label}: elements that other rows or a step change", changed, "", EXACTLY)
