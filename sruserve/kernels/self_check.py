"""Whether a GPU's kernels compute what the definition does: asked before anything is served."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sruserve.kernels.cell import Activation, Cell, Kind
from sruserve.kernels.chunks import Inline, SideStream, plan, run_layers
from sruserve.kernels.decode import Decoder
from sruserve.kernels.devices import CPU
from sruserve.kernels.dispatch import scan
from sruserve.kernels.graphs import Bursts, Eager, Recorder
from sruserve.kernels.layer import CellLayer
from sruserve.kernels.memory import is_out_of_memory
from sruserve.kernels.norm import Norm, NormKind
from sruserve.kernels.product import make_product
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.reference import reference_scan
from sruserve.kernels.slots import WINDOW, Slots, Streams

Scan = Callable[..., Tensor]

# Some ten times what rounding to the dtype does to the stack below.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.05}
_INPUTS, _PROJECTION, _VOCABULARY = 48, 32, 40
_CHUNK = 16  # rows: several chunks beside their products


@dataclass(frozen=True, slots=True)
class _Form:
    """A layer whose input is as wide as it is; the first of a stack has a projection."""

    cell: Cell
    window: bool = False  # the product reads the input before, too
    normed: bool = False  # an RMS norm and a bias after the product


# Two, so that rounding does not grow through eight layers. The bursts are of the first.
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
# What no layer with a product runs: pooling, and the other direction of time.
_SCANS = (
    (Cell(kind=Kind.SUM, blocks=1), None),
    (Cell(kind=Kind.MAX, blocks=2), None),
    (Cell(blocks=4, updated_reset=True), 0.5),
)
_STREAMS, _STEPS = 4, 5  # of the burst, which is made of two graphs


class KernelMismatch(RuntimeError):
    """A GPU's kernels do not run there, or compute something else; says what."""


def check_kernels(
    device: torch.device, dtype: torch.dtype, width: int = 384, crowd: int = 44
) -> None:
    """Run a small random stack over sequences, in chunks and in steps, and pick tokens.

    width: of the stack; by default the products need the widest tile.
    crowd: sequences of one step, by default as many as the scan has another tile for.

    Raises `KernelMismatch`. Takes as long as the kernels take to compile.
    """
    name = str(dtype).removeprefix("torch.")
    lengths = (5, 0, 1, 19, *[1] * crowd), (5, 0, 1, 3)
    stacks = [_Stack(width, *parts) for parts in zip(lengths, _STACKS, strict=True)]
    try:
        decoders = [stack.on(device, dtype) for stack in stacks]
        found = [stack.computed(decoder) for stack, decoder in zip(stacks, decoders, strict=True)]
        found.append(_scanned(scan, device, dtype, width))
        launched = _burst(decoders[0], Eager(device))
        replayed = _burst(decoders[0], None)
    except Exception as error:
        if is_out_of_memory(error):
            raise torch.OutOfMemoryError(str(error)) from error
        raise KernelMismatch(f"the kernels do not run in {name}: {error}") from error
    defined = [stack.defined() for stack in stacks]
    defined.append(_scanned(reference_scan, CPU, torch.float32, width))
    for ours, theirs in zip(found, defined, strict=True):
        for what, expected in theirs.items():
            apart = float((ours[what].float().cpu() - expected).abs().max())
            if not apart <= _TOLERANCE[dtype]:  # NaN is no agreement
                raise KernelMismatch(
                    f"the {what} in {name} are {apart:.3g} off, "
                    f"and {_TOLERANCE[dtype]:g} is rounding"
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
        """By the reference, on the CPU."""
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
        """The stack on the device that is checked."""

        def layer(i: int) -> CellLayer:
            weight_c, bias = (gate if gate is None else gate.to(device) for gate in self.gates[i])
            projection = None if i else make_product(self.projection, None, dtype, device)
            form, weight = self.forms[i], self.weights[i]
            inner = weight.to(device, dtype) if form.normed else None
            return CellLayer(
                cell=form.cell,
                product=make_product(weight, None, dtype, device),
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
            head=make_product(self.head, None, dtype, device),
            states=self.states.to(device, copy=True),
        )

    def computed(self, decoder: Decoder) -> dict[str, Tensor]:
        """By the kernels."""
        states = decoder.states
        lane = SideStream(states.device) if states.is_cuda else Inline()
        planned = plan(RaggedBatch(self.offsets, states, self.source, self.rows), _CHUNK)
        tokens = self.tokens if planned.order is None else self.tokens[planned.order]
        x = decoder.embedding.index_select(0, tokens.to(states.device))
        parts = [x[first:end] for first, end, _ in planned.chunks]
        batches = [batch for *_, batch in planned.chunks]
        h = torch.cat(run_layers(decoder.layers, parts, batches, lane))
        places = planned.places(torch.arange(len(tokens))).to(states.device)
        after, rows = states.clone(), self.rows.to(states.device)
        scores = decoder.logits(self.next.to(states.device), rows, rows)
        slots = Slots(len(self.rows), 1, states.device)  # empty ones take the most likely token
        decoder.pick(scores, slots)
        picked = scores.gather(1, slots.tokens.unsqueeze(1)).squeeze(1)
        return _named(h[places], after, scores, states.clone(), picked)


def _scanned(run: Scan, device: torch.device, dtype: torch.dtype, width: int) -> dict[str, Tensor]:
    """What `run` makes of each of `_SCANS`; of three sequences the last starts from nothing."""
    generator, found = torch.Generator().manual_seed(2), {}
    offsets, rows = torch.tensor([0, 4, 4, 11]).to(device), torch.arange(3).to(device)
    for cell, part in _SCANS:
        u = torch.randn(11, cell.blocks * width, generator=generator) / 2
        states = torch.randn(3, width, generator=generator).to(device)
        gates = torch.randn(2, 2, width, generator=generator).to(device)
        weight_c, bias = gates if cell.gated_by_state else (None, None)
        batch = RaggedBatch(offsets, states, torch.where(rows == 2, -1, rows), rows)
        split = None if part is None else int(part * width)
        h = run(u.to(device, dtype), None, weight_c, bias, batch, 0, cell, backward_from=split)
        found[f"outputs of {cell.kind.name}"] = h
        found[f"states of {cell.kind.name}"] = states
    return found


def _burst(decoder: Decoder, recorder: Recorder | None) -> Tensor:
    """Tokens of a burst that uses every option of the sampler; the states stay as they are."""
    before = decoder.states.clone()
    bursts = Bursts(decoder.step, before.device, _STREAMS, _STEPS, recorder)
    rows = torch.arange(_STREAMS)
    streams = Streams(
        tokens=rows,
        source=rows,
        target=rows,
        uniforms=torch.linspace(0.01, 0.99, _STEPS * _STREAMS).double().view(_STEPS, _STREAMS),
        temperature=0.5 + rows / 2,
        top_p=torch.where(rows % 2 == 0, 0.9, 1.0),
        min_p=torch.where(rows == 1, 0.01, 0.0),
        penalty=torch.where(rows == 2, 1.3, 1.0),
        top_k=torch.where(rows == 3, 20, 0).int(),
        window=rows.unsqueeze(1).expand(_STREAMS, WINDOW),
    )
    tokens = bursts.run(streams, _STEPS)
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
