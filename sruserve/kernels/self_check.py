"""Whether a GPU's kernels compute what the definition does: asked before anything is served."""

import torch
import torch.nn.functional as F
from torch import Tensor

from sruserve.kernels.decode import Decoder
from sruserve.kernels.layer import SRULayer
from sruserve.kernels.memory import is_out_of_memory
from sruserve.kernels.product import make_product
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.reference import reference_sru_scan
from sruserve.kernels.slots import Slots

# Some ten times what rounding to the dtype does to the stack below.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.05}
_INPUTS, _PROJECTION, _WIDTH, _VOCABULARY = 48, 32, 128, 40
_LENGTHS = (5, 0, 1, 19)
_STREAMS = torch.arange(len(_LENGTHS))
_OFFSETS = torch.tensor([0, *_LENGTHS]).cumsum(0)
_SOURCE = torch.where(_STREAMS == 2, -1, _STREAMS)
_TOKENS = torch.arange(sum(_LENGTHS)) * 7 % _VOCABULARY
_NEXT = _TOKENS[: len(_LENGTHS)]


class KernelMismatch(RuntimeError):
    """A GPU's kernels do not run there, or compute something else; says what."""


def check_kernels(device: torch.device, dtype: torch.dtype) -> None:
    """Run a small random stack over sequences, then one step, and pick tokens.

    Raises `KernelMismatch`. Takes as long as the kernels take to compile.
    """
    name = str(dtype).removeprefix("torch.")
    stack = _Stack()
    try:
        found = stack.computed(device, dtype)
    except Exception as error:
        if is_out_of_memory(error):
            raise torch.OutOfMemoryError(str(error)) from error
        raise KernelMismatch(f"the kernels do not run in {name}: {error}") from error
    for what, expected in stack.defined().items():
        apart = float((found[what].float().cpu() - expected).abs().max())
        if not apart <= _TOLERANCE[dtype]:  # NaN is no agreement
            raise KernelMismatch(
                f"the {what} in {name} are {apart:.3g} off, and {_TOLERANCE[dtype]:g} is rounding"
            )


class _Stack:
    """Two layers in float32: a projection into four planes, then three planes."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)

        def random(*size: int) -> Tensor:
            return torch.randn(size, generator=generator).div_(size[-1] ** 0.5)

        self.embedding, self.head = random(_VOCABULARY, _INPUTS) * 4, random(_VOCABULARY, _WIDTH)
        self.projection = random(_PROJECTION, _INPUTS)
        self.weights = [random(4 * _WIDTH, _PROJECTION), random(3 * _WIDTH, _WIDTH)]
        self.gates = [(random(2, _WIDTH), random(2, _WIDTH)) for _ in self.weights]
        self.states = random(len(_LENGTHS), 2 * _WIDTH) * 4

    def defined(self) -> dict[str, Tensor]:
        """By the reference, on the CPU."""
        states = self.states.clone()

        def run(tokens: Tensor, batch: RaggedBatch) -> Tensor:
            x = self.embedding[tokens]
            u, residual = x @ self.projection.T @ self.weights[0].T, None
            for i, (weight_c, bias) in enumerate(self.gates):
                x = reference_sru_scan(u, residual, weight_c, bias, batch, i * _WIDTH)
                u, residual = x @ self.weights[-1].T, x
            return x

        h = run(_TOKENS, RaggedBatch(_OFFSETS, states, _SOURCE, _STREAMS))
        after = states.clone()
        each = RaggedBatch(torch.arange(len(_LENGTHS) + 1), states, _STREAMS, _STREAMS)
        scores = F.linear(run(_NEXT, each), self.head)
        return _named(h, after, scores, states, scores.amax(1))

    def computed(self, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """By the kernels of `device`."""

        def layer(i: int) -> SRULayer:
            weight_c, bias = (gate.to(device) for gate in self.gates[i])
            projection = None if i else make_product(self.projection, None, dtype, device)
            return SRULayer(
                product=make_product(self.weights[i], None, dtype, device),
                projection=projection,
                weight_c=weight_c,
                bias=bias,
                column=i * _WIDTH,
                highway_is_input=i > 0,
            )

        decoder = Decoder(
            embedding=self.embedding.to(device, dtype),
            layers=[layer(i) for i in range(len(self.weights))],
            head=make_product(self.head, None, dtype, device),
            states=self.states.to(device, copy=True),
        )
        offsets, source, streams = (t.to(device) for t in (_OFFSETS, _SOURCE, _STREAMS))
        h = decoder.embedding.index_select(0, _TOKENS.to(device))
        for each in decoder.layers:
            h = each(h, RaggedBatch(offsets, decoder.states, source, streams))
        after = decoder.states.clone()
        scores = decoder.logits(_NEXT.to(device), streams, streams)
        slots = Slots(len(_LENGTHS), 1, device)  # empty ones take the most likely token
        decoder.pick(scores, slots)
        picked = scores.gather(1, slots.tokens.unsqueeze(1)).squeeze(1)
        return _named(h, after, scores, decoder.states, picked)


def _named(*outcomes: Tensor) -> dict[str, Tensor]:
    names = (
        "outputs of sequences",
        "states after sequences",
        "scores of a step",
        "states after a step",
        "scores of the tokens that are picked",
    )
    return dict(zip(names, outcomes, strict=True))
