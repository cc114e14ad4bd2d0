"""Check, before a model is served, that a GPU's kernels agree with the reference."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sruserve.kernels.cell import Activation, Cell, Kind
from sruserve.kernels.chunks import plan, run_layers
from sruserve.kernels.decode import Decoder
from sruserve.kernels.devices import CPU
from sruserve.kernels.dispatch import scan
from sruserve.kernels.graphs import Eager, GraphBackend, GraphedDecode
from sruserve.kernels.layer import CellLayer
from sruserve.kernels.linear import make_linear
from sruserve.kernels.norm import Norm, NormKind
from sruserve.kernels.norm_choice import choose_norm
from sruserve.kernels.oom import is_out_of_memory
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.reference.scan import reference_scan
from sruserve.kernels.side_stream import side_stream_for
from sruserve.kernels.slots import WINDOW, DecodeInputs, Slots

Scan = Callable[..., Tensor]

# About ten times the rounding error of the stacks below in each dtype.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.05}
_INPUTS, _PROJECTION, _VOCABULARY = 48, 32, 40
_CHUNK = 16  # rows: several chunks, so that recurrences run concurrently with products


@dataclass(frozen=True, slots=True)
class _Form:
    """A layer whose input and output have the same width; the first of a stack has a projection."""

    cell: Cell
    window: bool = False  # the product also reads the previous input
    normed: bool = False  # an RMS norm and a bias after the product


# Two stacks, so that rounding does not accumulate over eight layers. Bursts use the first one.
_STACKS = (
    (
        _Form(Cell(blocks=4)),
        _Form(Cell()),
        _Form(Cell(kind=Kind.LRN, activation=Activation.TANH)),
        _Form(Cell(kind=Kind.QRNN)),
    ),
    (
        _Form(Cell(kind=Kind.LRN, blocks=4)),
        _Form(Cell(kind=Kind.QRNN, blocks=2, zoneout=0.3), window=True),
        _Form(Cell(kind=Kind.LRN, activation=Activation.TANH), normed=True),
        _Form(Cell(kind=Kind.QRNN, blocks=4)),
    ),
)
_SHIFT = Cell(kind=Kind.SHIFT, blocks=1)
# Scans that no layer with a product runs: pooling, and the backward direction.
_SCANS = (
    (Cell(kind=Kind.SUM, blocks=1), None),
    (Cell(kind=Kind.MAX, blocks=2), None),
    (Cell(kind=Kind.DECAY, blocks=2), None),
    (Cell(blocks=4, updated_reset=True), 0.5),
)


class KernelMismatch(RuntimeError):
    """A GPU's kernels do not run, or disagree with the reference; the message says in what."""


def check_kernels(
    device: torch.device,
    dtype: torch.dtype,
    width: int = 384,
    single_steps: int = 44,
    burst: tuple[int, int] = (4, 5),
) -> None:
    """Run small random stacks over sequences, in chunks and in single steps, and pick tokens.

    dtype: float32, bfloat16 or float16.
    width: width of the stacks; with the default the products need the widest tile.
    single_steps: number of sequences of one step; with the default the scan uses its tile for
        large batches.
    burst: streams and steps of a burst; the default replays two graphs.

    Raises `KernelMismatch`, or `torch.OutOfMemoryError`. The time is that of compiling the kernels.
    """
    choose_norm(device, dtype)
    name = str(dtype).removeprefix("torch.")
    lengths = (5, 0, 1, 19, *[1] * single_steps), (5, 0, 1, 3)
    stacks = [_Stack(width, *parts) for parts in zip(lengths, _STACKS, strict=True)]
    try:
        decoders = [stack.on(device, dtype) for stack in stacks]
        results = [stack.computed(decoder) for stack, decoder in zip(stacks, decoders, strict=True)]
        results.append(_scanned(scan, device, dtype, width))
        launched = _burst(decoders[0], burst, Eager(device))
        replayed = _burst(decoders[0], burst, None)
    except Exception as error:
        if is_out_of_memory(error):
            raise torch.OutOfMemoryError(str(error)) from error
        raise KernelMismatch(f"the kernels do not run in {name}: {error}") from error
    references = [stack.defined() for stack in stacks]
    references.append(_scanned(reference_scan, CPU, torch.float32, width))
    for result, reference in zip(results, references, strict=True):
        for tensor, expected in reference.items():
            difference = float((result[tensor].float().cpu() - expected).abs().max())
            if not difference <= TOLERANCE[dtype]:  # also true for NaN
                raise KernelMismatch(
                    f"the {tensor} in {name} differ from the reference by {difference:.3g}; "
                    f"rounding allows {TOLERANCE[dtype]:g}"
                )
    if not torch.equal(launched, replayed):
        raise KernelMismatch(f"a captured burst in {name} picks other tokens than its launches")


class _Stack:
    """A layer of each form in float32, with a projection before the first."""

    def __init__(self, width: int, lengths: tuple[int, ...], forms: tuple[_Form, ...]) -> None:
        generator = torch.Generator().manual_seed(1)

        def random(*size: int) -> Tensor:
            return torch.randn(size, generator=generator).div_(size[-1] ** 0.5)

        self.width, self.forms = width, forms
        self.embedding, self.head = random(_VOCABULARY, _INPUTS) * 4, random(_VOCABULARY, width)
        self.projection = random(_PROJECTION, _INPUTS)
        self.weights = [
            random(form.cell.blocks * width, width * (1 + form.window) if i else _PROJECTION)
            for i, form in enumerate(forms)
        ]
        self.gates = [
            (random(2, width), random(2, width)) if form.cell.gated_by_state else (None, None)
            for form in forms
        ]
        # One run of columns for each cell, and one for the input before.
        self.states = random(len(lengths), (len(forms) + 1) * width) * 4
        self.previous = len(forms) * width
        self.offsets = torch.tensor([0, *lengths]).cumsum(0)
        self.rows = torch.arange(len(lengths))
        self.source = torch.where(self.rows == 2, -1, self.rows)
        self.tokens = torch.arange(sum(lengths)) * 7 % _VOCABULARY
        self.next = self.tokens[: len(lengths)]

    def defined(self) -> dict[str, Tensor]:
        """Return the results of the reference, on the CPU."""
        states = self.states.clone()

        def run(tokens: Tensor, batch: RaggedBatch) -> Tensor:
            x = self.embedding[tokens]
            z = x @ self.projection.T
            for i, (form, weight) in enumerate(zip(self.forms, self.weights, strict=True)):
                cell = form.cell
                residual = x if cell.takes_residual else None
                if form.window:
                    none = None, None, None
                    before = reference_scan(z, *none, batch, self.previous, _SHIFT)
                    z = torch.cat((z, before), 1)
                u, (weight_c, bias) = z @ weight.T, self.gates[i]
                if form.normed:
                    u = F.rms_norm(u, (len(weight),), weight[:, 0], 1e-8) + weight[:, 1]
                x = reference_scan(u, residual, weight_c, bias, batch, i * self.width, cell)
                z = x
            return x

        h = run(self.tokens, RaggedBatch(self.offsets, states, self.source, self.rows))
        after = states.clone()
        each = RaggedBatch(torch.arange(len(self.rows) + 1), states, self.rows, self.rows)
        scores = F.linear(run(self.next, each), self.head)
        return _named(h, after, scores, states, scores.amax(1))

    def on(self, device: torch.device, dtype: torch.dtype) -> Decoder:
        """Return the stack on the device under test."""

        def layer(i: int) -> CellLayer:
            weight_c, bias = (gate if gate is None else gate.to(device) for gate in self.gates[i])
            projection = None if i else make_linear(self.projection, None, dtype, device)
            form, weight = self.forms[i], self.weights[i]
            inner = weight.to(device, dtype) if form.normed else None
            return CellLayer(
                cell=form.cell,
                linear=make_linear(weight, None, dtype, device),
                projection=projection,
                weight_c=weight_c,
                bias=bias,
                column=i * self.width,
                highway_is_input=form.cell.takes_residual,
                previous=self.previous if form.window else None,
                inner_norm=None if inner is None else Norm(inner[:, 0], None, NormKind.RMS),
                inner_bias=None if inner is None else inner[:, 1],
            )

        return Decoder(
            embedding=self.embedding.to(device, dtype),
            layers=[layer(i) for i in range(len(self.weights))],
            head=make_linear(self.head, None, dtype, device),
            states=self.states.to(device, copy=True),
        )

    def computed(self, decoder: Decoder) -> dict[str, Tensor]:
        """Return the results of the kernels."""
        states = decoder.states
        side_stream = side_stream_for(states.device)
        planned = plan(RaggedBatch(self.offsets, states, self.source, self.rows), _CHUNK)
        tokens = self.tokens if planned.order is None else self.tokens[planned.order]
        x = decoder.embedding.index_select(0, tokens.to(states.device))
        parts = [x[first:end] for first, end, _ in planned.chunks]
        batches = [batch for *_, batch in planned.chunks]
        h = torch.cat(run_layers(decoder.layers, parts, batches, side_stream))
        places = planned.places(torch.arange(len(tokens))).to(states.device)
        after, rows = states.clone(), self.rows.to(states.device)
        scores = decoder.logits(self.next.to(states.device), rows, rows)
        slots = Slots(len(self.rows), 1, states.device)  # empty ones take the most likely token
        slots.limits.fill_(1)
        decoder.pick(scores, slots)
        picked = scores.gather(1, slots.tokens.unsqueeze(1)).squeeze(1)
        return _named(h[places], after, scores, states.clone(), picked)


def _scanned(run: Scan, device: torch.device, dtype: torch.dtype, width: int) -> dict[str, Tensor]:
    """Run each of `_SCANS` over three sequences, of which the last starts from zeros."""
    generator, tensors = torch.Generator().manual_seed(2), {}
    offsets, rows = torch.tensor([0, 4, 4, 11]).to(device), torch.arange(3).to(device)
    for cell, part in _SCANS:
        u = torch.randn(11, cell.blocks * width, generator=generator) / 2
        states = torch.randn(3, width, generator=generator).to(device)
        gates = torch.randn(2, 2, width, generator=generator).to(device)
        weight_c, bias = gates if cell.gated_by_state else (None, None)
        batch = RaggedBatch(offsets, states, torch.where(rows == 2, -1, rows), rows)
        split = None if part is None else int(part * width)
        h = run(u.to(device, dtype), None, weight_c, bias, batch, 0, cell, backward_from=split)
        tensors[f"outputs of {cell.kind.name}"] = h
        tensors[f"states of {cell.kind.name}"] = states
    return tensors


def _burst(decoder: Decoder, burst: tuple[int, int], recorder: GraphBackend | None) -> Tensor:
    """Return a burst's tokens, with every option of the sampler in use; restores the states."""
    count, steps = burst
    before = decoder.states.clone()
    bursts = GraphedDecode(decoder.step, before.device, count, steps, recorder)
    rows = torch.arange(count)
    streams = DecodeInputs(
        tokens=rows,
        source=rows,
        target=rows,
        limits=torch.full((count,), steps),
        seed=rows,
        choice=rows,
        draw=rows,
        temperature=0.5 + rows / 2,
        top_p=torch.where(rows % 2 == 0, 0.9, 1.0),
        min_p=torch.where(rows == 1, 0.01, 0.0),
        penalty=torch.where(rows == 2, 1.3, 1.0),
        top_k=torch.where(rows == 3, 20, 0).int(),
        window=rows.unsqueeze(1).expand(count, WINDOW),
    )
    tokens = bursts.run(streams, steps)
    decoder.states.copy_(before)
    return tokens


def _named(*outcomes: Tensor) -> dict[str, Tensor]:
    names = (
        "outputs of sequences",
        "states after sequences",
        "scores of a step",
        "states after a step",
        "scores of the tokens that are picked",
    )
    return dict(zip(names, outcomes, strict=True))
