"""The cells step by step, as their papers and libraries define them; x: (steps, in)."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": torch.clone,
    "tanh": torch.tanh,
    "relu": F.relu,
    "selu": F.selu,
}


def random(*shape: int, seed: int, spread: float | None = None) -> Tensor:
    """Random numbers with which gates and states vary."""
    generator = torch.Generator().manual_seed(seed)
    if spread is None:
        spread = 1.0 if len(shape) < 2 else 1.5 / math.sqrt(shape[0])
    return torch.randn(shape, generator=generator) * spread


def sru_layer(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    weight_c: Tensor | None = None,
    *,
    scale: float = 1.0,
    activation: str = "identity",
    directions: int = 1,
    skip: bool = True,
    residual: Tensor | None = None,
) -> Tensor:
    """A layer of `sru`: weight (in, D * h * k), the block fastest; residual: x before its norm."""
    width = len(bias) // 2
    u = (x @ weight).view(len(x), width, -1)
    highway = x if residual is None else residual
    if not skip:
        highway = torch.zeros(len(x), width)
    elif u.shape[-1] == 4:
        highway = u[..., 3]
    else:
        highway = highway * scale
    v = torch.zeros(2, width) if weight_c is None else weight_c.view(2, width)
    b, g = bias.view(2, width), ACTIVATIONS[activation]
    h = torch.empty(len(x), width)
    half = width // directions
    for direction in range(directions):
        own = slice(direction * half, (direction + 1) * half)
        steps = range(len(x)) if direction == 0 else reversed(range(len(x)))
        c = torch.zeros(half)
        for t in steps:
            f = torch.sigmoid(u[t, own, 1] + v[0, own] * c + b[0, own])
            r = torch.sigmoid(u[t, own, 2] + v[1, own] * c + b[1, own])
            c = f * c + (1 - f) * u[t, own, 0]
            h[t, own] = r * g(c) + (1 - r) * highway[t, own]
    return h


def norm_1(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """1.x: the biased deviation, and eps outside the root."""
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, correction=0, keepdim=True) + 1e-6) * a + b


def norm_2(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """2.0.0 to 2.1.7: the unbiased variance, and eps inside the root."""
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-6).sqrt() * a + b


def lrn_repository_cell(kind: str, cell: dict[str, Tensor], x: Tensor) -> Tensor:
    """A cell of lm/code/rnn.py: (steps, h)."""
    width = len(cell["_b"]) // 4 if kind == "lstm" else len(cell["_W_b"])
    width //= {"lstm": 1, "gru": 2, "atr": 1, "lrn": 3, "sru": 4}[kind]
    h, c, outputs = torch.zeros(width), torch.zeros(width), []
    for step in x:
        joined = torch.cat([step, h])
        if kind == "lstm":
            i, f, o, g = (joined @ cell["_W"] + cell["_b"]).chunk(4)
            c = i.sigmoid() * g.tanh() + f.sigmoid() * c
            h = o.sigmoid() * c.tanh()
        elif kind == "gru":
            r, u = (joined @ cell["_W"] + cell["_W_b"]).sigmoid().chunk(2)
            n = torch.cat([step, r * h]) @ cell["_U"] + cell["_U_b"]
            h = u * h + (1 - u) * n.tanh()
        elif kind == "atr":
            p, q = step @ cell["_W"] + cell["_W_b"], h @ cell["_U"] + cell["_U_b"]
            h = ((p + q).sigmoid() * p + (p - q).sigmoid() * h).tanh()
        elif kind == "lrn":
            p, q, r = (step @ cell["_W"] + cell["_W_b"]).chunk(3)
            h = ((p + h).sigmoid() * r + (q - h).sigmoid() * h).tanh()
        else:
            f, n, r, y = (step @ cell["_W"] + cell["_W_b"]).chunk(4)
            f, r = (f + cell["_Vf"] * c).sigmoid(), (r + cell["_Vr"] * c).sigmoid()
            c = f * c + (1 - f) * n
            h = r * c + (1 - r) * y
        outputs.append(h)
    return torch.stack(outputs)


def qrnn_layer(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    window: int,
    gate: bool = True,
    zoneout: float = 0.0,
    highway: bool = False,
    width: int | None = None,
) -> Tensor:
    """A QRNN layer: rows of weight Z, F and O over [x_t, x_{t-1}]; X, too, for a wide highway.

    width: the layer's, where four blocks of rows could be three.
    """
    residual = x
    if window == 2:
        x = torch.cat([x, torch.cat([torch.zeros_like(x[:1]), x[:-1]])], 1)
    wide = highway and residual.shape[1] != (width or len(weight) // 3)
    z, f, *o = (x @ weight.T + bias).chunk(4 if wide else 3 if gate else 2, 1)
    if wide:
        residual = o[1]
    z, f = z.tanh(), f.sigmoid() * (1 - zoneout)
    c, outputs = torch.zeros(z.shape[1]), []
    for t in range(len(x)):
        c = f[t] * z[t] + (1 - f[t]) * c
        h = o[0][t].sigmoid() * c if gate else c
        outputs.append(h + (1 - o[0][t].sigmoid()) * residual[t] if highway else h)
    return torch.stack(outputs)
