"""The kernels' results in float64 on the CPU, written for reading and not for speed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sruserve.kernels import Activation, Cell, RaggedBatch
from sruserve.kernels.reference.philox import random_bits
from sruserve.kernels.slots import DecodeInputs

_NEAR = 1e-5  # a draw this close to a border may fall on either side of it in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form of SRU: the switches of its `Cell`. skip: whether it has a highway."""

    name: str
    blocks: int = 3
    skip: bool = True
    scale: float = 1.0
    tanh: bool = False
    updated_reset: bool = False
    bidirectional: bool = False

    @property
    def cell(self) -> Cell:
        return Cell(
            blocks=self.blocks,
            activation=Activation.TANH if self.tanh else Activation.IDENTITY,
            updated_reset=self.updated_reset,
            scale=self.scale,
        )


def exact_scan(
    form: Form,
    u: Tensor,
    residual: Tensor | None,
    weight_c: Tensor,
    bias: Tensor,
    batch: RaggedBatch,
    column: int,
) -> tuple[Tensor, Tensor]:
    """Compute `reference_scan` in float64, on copies; returns h and the states after it."""
    width = weight_c.shape[1]
    blocks = u.cpu().double().view(len(u), -1, width)
    x = torch.zeros(len(u), width, dtype=torch.float64)
    if form.blocks == 4:
        x = blocks[:, 3]
    elif residual is not None:
        x = residual.cpu().double() * form.scale
    (w_f, w_r), (b_f, b_r) = weight_c.cpu().double(), bias.cpu().double()
    states = batch.states.cpu().double()
    h = torch.full_like(x, float("nan"))
    split = width // 2 if form.bidirectional else width
    offsets = batch.offsets.tolist()
    for b, (source, target) in enumerate(
        zip(batch.source.tolist(), batch.target.tolist(), strict=True)
    ):
        start = states[source].clone() if source >= 0 else torch.zeros_like(states[0])
        times = range(offsets[b], offsets[b + 1])
        for order, first, end in ((times, 0, split), (times[::-1], split, width)):
            at = slice(first, end)
            c = start[column + first : column + end]
            for t in order:
                z, u_f, u_r = blocks[t, :3, at]
                f = torch.sigmoid(u_f + w_f[at] * c + b_f[at])
                new = z + (c - z) * f
                seen = new if form.updated_reset else c
                r = torch.sigmoid(u_r + w_r[at] * seen + b_r[at])
                g = new.tanh() if form.tanh else new
                h[t, at] = x[t, at] + (g - x[t, at]) * r
                c = new
            if target >= 0:
                states[target, column + first : column + end] = c
    return h, states


def allowed_tokens(logits: Tensor, streams: DecodeInputs, step: int) -> Tensor:
    """Return the tokens that a correct sampler may pick, (choices, streams).

    There is one token for each stream, or two if the draw is at a border.

    logits: (streams, vocabulary). streams: before the step.
    """
    scores = _penalised(logits.cpu().double(), streams)
    sides = (0.0, _NEAR, -_NEAR)
    keys = zip(streams.seed.tolist(), streams.choice.tolist(), streams.draw.tolist(), strict=True)
    bits = [random_bits(seed, choice, draw + step) for seed, choice, draw in keys]
    uniforms = torch.tensor(bits, dtype=torch.float64) * 2.0**-53
    draws = [uniforms + side for side in sides]
    return torch.stack(
        [_picked(scores, streams, draw, filters) for draw in draws for filters in sides]
    )


def relative_error(result: Tensor, exact: Tensor) -> float:
    """Return ‖result - exact‖ / ‖exact‖; NaN if any element is NaN."""
    difference = result.detach().cpu().double() - exact
    return float(difference.norm() / exact.norm().clamp(min=1e-30))


def _penalised(scores: Tensor, streams: DecodeInputs) -> Tensor:
    scores = scores.clone()
    for stream, window in enumerate(streams.window.tolist()):
        penalty = float(streams.penalty[stream])
        for token in set(window) - {-1}:
            score = scores[stream, token]
            scores[stream, token] = score / penalty if score > 0 else score * penalty
    return scores


def _picked(scores: Tensor, streams: DecodeInputs, uniforms: Tensor, filters: float) -> Tensor:
    """Pick one token per stream, with every filter's limit multiplied by 1 + `filters`."""
    best = scores.max(1, keepdim=True).values
    heat = streams.temperature.double().clamp(min=1e-30).unsqueeze(1)
    probabilities = ((scores - best) / heat).softmax(1)
    ordered, ids = probabilities.sort(dim=1, descending=True, stable=True)
    top_k = streams.top_k.clone()
    top_k[top_k == 0] = scores.shape[1]
    filtered = ordered.where(torch.arange(scores.shape[1]) < top_k.unsqueeze(1), 0.0)
    top_p = streams.top_p.double().unsqueeze(1)
    border = top_p * (1 + filters) * filtered.sum(1, keepdim=True)
    inside = (filtered.cumsum(1) - filtered < border) | (top_p >= 1)
    inside[:, 0] = True
    filtered = filtered.where(inside, 0.0)
    threshold = streams.min_p.double().unsqueeze(1) * (1 + filters)
    filtered = filtered.where(filtered >= threshold * filtered[:, :1], 0.0)
    cdf = torch.zeros_like(filtered).scatter_(1, ids, filtered).cumsum(1)
    drawn = (cdf <= uniforms.unsqueeze(1) * cdf[:, -1:]).sum(1).clamp(max=scores.shape[1] - 1)
    return torch.where(streams.temperature == 0, scores.argmax(1), drawn)
