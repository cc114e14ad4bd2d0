"""The recurrence in plain torch: the definition that every faster kernel must agree with."""

import torch
from torch import Tensor

from sruserve.kernels.ragged import RaggedBatch


def reference_sru_scan(
    u: Tensor,
    residual: Tensor | None,
    weight_c: Tensor,
    bias: Tensor,
    batch: RaggedBatch,
    column: int,
    *,
    scale: float = 1.0,
    tanh: bool = False,
    updated_reset: bool = False,
    backward_from: int | None = None,
) -> Tensor:
    """The SRU recurrence over a ragged batch (Lei et al. 2018, eq. 1-4; sru 2.1.9-2.6.0).

    u: (rows, 3 * width) or (rows, 4 * width), float32 or bfloat16, in planar blocks: candidate,
        forget, reset, and with 4 the highway input. Rows past the last offset are padding: what
        h holds there means nothing.
    residual: (rows, width), the dtype of `u`: the layer's raw input, which the highway takes
        when `u` has 3 blocks; None with 4 blocks, or where the layer has no skip term.
    weight_c, bias: (2, width), float32: forget, reset.
    column: the first column of this layer's `c` in the rows of `batch.states`.
    scale: alpha, the factor on `residual`.
    tanh: h takes tanh(c) instead of c.
    updated_reset: the reset gate reads the new c (Algorithm 1 as printed in the paper) instead
        of the previous one (eq. 3, and every release).
    backward_from: channels from this one on run from the last row to the first.

    Returns h, (rows, width), the dtype of `u`. Arithmetic and state are float32.
    """
    width = weight_c.shape[1]
    blocks = u.float().view(len(u), -1, width)
    skip = None
    if blocks.shape[1] == 4:
        skip = blocks[:, 3]
    elif residual is not None:
        skip = residual.float() * scale
    h = torch.empty(len(u), width)
    split = width if backward_from is None else backward_from
    offsets = batch.offsets.tolist()
    rows = zip(batch.source.tolist(), batch.target.tolist(), strict=True)
    for sequence, (source, target) in enumerate(rows):
        times = range(offsets[sequence], offsets[sequence + 1])
        for order, channels in ((times, slice(0, split)), (times[::-1], slice(split, width))):
            place = slice(column + channels.start, column + channels.stop)
            c = (
                batch.states[source, place]
                if source >= 0
                else torch.zeros(place.stop - place.start)
            )
            w_f, w_r = weight_c[:, channels]
            b_f, b_r = bias[:, channels]
            for t in order:
                z, u_f, u_r = blocks[t, :3, channels]
                f = torch.sigmoid(u_f + w_f * c + b_f)
                previous = c
                c = z + (c - z) * f  # the released code's rounding order
                r = torch.sigmoid(u_r + w_r * (c if updated_reset else previous) + b_r)
                g = torch.tanh(c) if tanh else c
                if skip is None:
                    h[t, channels] = g * r
                else:
                    x = skip[t, channels]
                    h[t, channels] = x + (g - x) * r
            if target >= 0:
                batch.states[target, place] = c
    return h.to(u.dtype)
