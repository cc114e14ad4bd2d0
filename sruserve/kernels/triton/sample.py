"""Pick the next token of many streams on a GPU, with the mathematics of the engine's `Sampler`."""

from dataclasses import dataclass, fields

import torch
import triton
import triton.language as tl
from torch import Tensor

from sruserve.kernels.slots import WINDOW, Slots
from sruserve.kernels.triton.linear import check_memory
from sruserve.kernels.triton.tiles import SAMPLE_VOCABULARY, sample_warps


def triton_sample(logits: Tensor, slots: Slots) -> None:
    """Pick a token for every slot from logits (slots, vocabulary), float32; advance the slots.

    A slot past its limit stays as it is.
    """
    sample_rows(
        logits,
        None,
        slots.temperature,
        slots.top_k,
        slots.top_p,
        slots.min_p,
        slots.penalty,
        slots.window,
        slots.position,
        slots.tokens,
        slots.history,
        Draws(slots.seed, slots.choice, slots.draw, slots.limits, slots.target),
    )


@dataclass(frozen=True, slots=True)
class Draws:
    """Where the random numbers come from, and which slots take part; (streams) int64 each.

    seed, choice, draw: see `reference.philox.random_bits`; `draw` is counted.
    limits, target: a stream whose `position` is not below its limit picks nothing. After its last
    step its target becomes -1, so that further steps write no state of it.
    """

    seed: Tensor
    choice: Tensor
    draw: Tensor
    limits: Tensor
    target: Tensor


def sample_rows(
    logits: Tensor,
    uniforms: Tensor | None,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    penalty: Tensor,
    window: Tensor,
    position: Tensor,
    out: Tensor,
    history: Tensor | None = None,
    draws: Draws | None = None,
) -> None:
    """Pick one token per stream, independently of the other streams.

    In order: repetition penalty (Keskar et al. 2019, section 4.1), temperature, softmax, top-k,
    top-p over the remaining tokens, min-p, and the inverse CDF in id order at the stream's uniform
    number.

    logits: (streams, vocabulary), float32, at most `SAMPLE_VOCABULARY` tokens.
    uniforms: (steps, streams), float64, in [0, 1): stream s reads row `position[s]`; or (streams).
        None: `draws` gives the numbers.
    temperature: (streams), float32; 0 picks the most likely token, the lowest id of equals.
    top_k: (streams), int32; 0 keeps all tokens.
    top_p, min_p, penalty: (streams), float32; 1, 0 and 1 have no effect.
    window: (streams, WINDOW), int64: the tokens to penalise, -1 for none. It is a ring, which
        receives the picked token at `position % WINDOW`, or with `draws` at `draw % WINDOW`.
    position: (streams), int64, incremented by one.
    out: (streams), int64, receives the token, as does row `position` of `history`,
        (steps, streams), int64.

    An unused slot may hold any values. Raises ValueError, before it writes anything, for tensors
    that do not fit.
    """
    streams, vocabulary = logits.shape
    if not 0 < vocabulary <= SAMPLE_VOCABULARY:
        raise ValueError(
            f"the vocabulary has {vocabulary} tokens; this kernel samples from 1 to "
            f"{SAMPLE_VOCABULARY}"
        )
    if (uniforms is None) == (draws is None):
        raise ValueError("the random numbers are those of `uniforms` or of `draws`: pass one")
    steps = 1 if uniforms is None or uniforms.dim() == 1 else uniforms.shape[0]
    per_step = uniforms is not None and uniforms.dim() == 2
    shapes: dict[str, tuple[Tensor, tuple[int, ...], torch.dtype]] = {
        "logits": (logits, (streams, vocabulary), torch.float32),
        "temperature": (temperature, (streams,), torch.float32),
        "top_k": (top_k, (streams,), torch.int32),
        "top_p": (top_p, (streams,), torch.float32),
        "min_p": (min_p, (streams,), torch.float32),
        "penalty": (penalty, (streams,), torch.float32),
        "window": (window, (streams, WINDOW), torch.int64),
        "position": (position, (streams,), torch.int64),
        "out": (out, (streams,), torch.int64),
    }
    if uniforms is not None:
        rows = (steps, streams) if per_step else (streams,)
        shapes["uniforms"] = (uniforms, rows, torch.float64)
    if draws is not None:
        for field in fields(draws):
            shapes[field.name] = (getattr(draws, field.name), (streams,), torch.int64)
    if history is not None:
        shapes["history"] = (history, (history.shape[0], streams), torch.int64)
    for name, (tensor, shape, dtype) in shapes.items():
        if tensor.shape != shape or tensor.dtype is not dtype:
            raise ValueError(
                f"{name} must have shape {shape} and dtype {dtype}, not {tuple(tensor.shape)} and "
                f"{tensor.dtype}"
            )
    check_memory(logits.device, **{name: tensor for name, (tensor, _, _) in shapes.items()})
    if not streams:
        return
    block = max(32, triton.next_power_of_2(vocabulary))
    with torch.cuda.device_of(logits):  # Triton launches on the current device
        sample_kernel[(streams,)](
            logits,
            uniforms,
            temperature,
            top_k,
            top_p,
            min_p,
            penalty,
            window,
            position,
            out,
            history,
            *(getattr(draws, field.name, None) for field in fields(Draws)),
            streams,
            steps,
            0 if history is None else history.shape[0],
            VOCABULARY=vocabulary,
            WINDOW=WINDOW,
            PER_STEP=per_step,
            BLOCK=block,
            num_warps=sample_warps(block),
            enable_fp_fusion=False,
        )


@triton.jit(do_not_specialize=["streams", "steps", "rows"])
def sample_kernel(
    logits,
    uniforms,
    temperature,
    top_k,
    top_p,
    min_p,
    penalty,
    window,
    position,
    out,
    history,
    seed,
    choice,
    draw,
    limits,
    target,
    streams,
    steps,
    rows,
    VOCABULARY: tl.constexpr,
    WINDOW: tl.constexpr,
    PER_STEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Pick the token of one stream; an option that is not in use costs one branch."""
    stream = tl.program_id(0)
    ids = tl.arange(0, BLOCK)
    at = tl.load(position + stream)
    number = at
    if draw is not None:
        number = tl.load(draw + stream)
    scores = tl.load(
        logits + stream.to(tl.int64) * VOCABULARY + ids, ids < VOCABULARY, float("-inf")
    )
    scores = penalised(scores, ids, window + stream * WINDOW, tl.load(penalty + stream), WINDOW)
    best = tl.max(scores, 0)
    heat = tl.load(temperature + stream)
    if heat == 0.0:
        token = tl.min(tl.where(scores == best, ids, VOCABULARY - 1), 0)
    else:
        # Subtract the best score, so that a small temperature cannot make it infinite.
        weights = tl.exp(tl.div_rn(scores - best, tl.maximum(heat, 1e-30)))
        probabilities = tl.div_rn(weights, tl.sum(weights, 0))
        k = tl.load(top_k + stream)
        p = tl.load(top_p + stream)
        threshold = tl.load(min_p + stream)
        if (k != 0) | (p < 1.0) | (threshold > 0.0):
            probabilities = filtered(probabilities, ids, k, p, threshold, VOCABULARY, BLOCK)
        if uniforms is None:
            uniform = uniform_number(tl.load(seed + stream), tl.load(choice + stream), number)
        elif PER_STEP:
            inside = (at >= 0) & (at < steps)
            uniform = tl.load(uniforms + at * streams + stream, inside, 0.0)
        else:
            uniform = tl.load(uniforms + stream)
        cdf = tl.cumsum(probabilities.to(tl.float64), 0)
        total = tl.sum(tl.where(ids == VOCABULARY - 1, cdf, 0.0), 0)
        below = (cdf <= uniform * total) & (ids < VOCABULARY)
        token = min(tl.sum(below.to(tl.int32), 0), VOCABULARY - 1)
    takes_part = at == at
    if limits is not None:
        limit = tl.load(limits + stream)
        takes_part = at < limit
    # Every warp must have read the stream's values before one warp overwrites them.
    tl.debug_barrier()
    token = token.to(tl.int64)
    tl.store(out + stream, token, takes_part)
    if history is not None:
        inside = (at >= 0) & (at < rows)
        tl.store(history + at * streams + stream, token, takes_part & inside)
    tl.store(window + stream * WINDOW + (number & (WINDOW - 1)), token, takes_part)
    tl.store(position + stream, at + 1, takes_part)
    if draw is not None:
        tl.store(draw + stream, number + 1, takes_part)
    if limits is not None:  # the last step: the next ones write no state
        tl.store(target + stream, -1, at + 1 >= limit)


@triton.jit
def uniform_number(seed, choice, number):
    """The uniform number in [0, 1) of `reference.philox.random_bits`, float64."""
    key_0 = seed.to(tl.uint64) & 0xFFFFFFFF
    key_1 = seed.to(tl.uint64) >> 32
    c_0 = number.to(tl.uint64) & 0xFFFFFFFF
    c_1 = number.to(tl.uint64) >> 32
    c_2 = choice.to(tl.uint64) & 0xFFFFFFFF
    c_3 = c_2 & 0
    for _ in tl.static_range(10):
        left = c_0 * 0xD2511F53
        right = c_2 * 0xCD9E8D57
        c_0 = (right >> 32) ^ c_1 ^ key_0
        c_1 = right & 0xFFFFFFFF
        c_2 = (left >> 32) ^ c_3 ^ key_1
        c_3 = left & 0xFFFFFFFF
        key_0 = (key_0 + 0x9E3779B9) & 0xFFFFFFFF
        key_1 = (key_1 + 0xBB67AE85) & 0xFFFFFFFF
    bits = ((c_0 >> 5) << 26) | (c_1 >> 6)
    return bits.to(tl.int64).to(tl.float64) * (1.0 / 9007199254740992.0)


@triton.jit
def penalised(scores, ids, window, penalty, WINDOW: tl.constexpr):
    """Make the tokens in the window less likely."""
    if penalty != 1.0:
        seen = ids < 0
        for place in tl.static_range(WINDOW):
            seen = seen | (ids == tl.load(window + place))
        less = tl.where(scores > 0, tl.div_rn(scores, penalty), scores * penalty)
        scores = tl.where(seen, less, scores)
    return scores


@triton.jit
def filtered(
    probabilities, ids, top_k, top_p, min_p, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr
):
    """Zero the tokens that top-k, then top-p over the remaining ones, then min-p exclude.

    The remaining tokens are a prefix of the order by (probability, id), so its last key suffices.
    """
    bits = probabilities.to(tl.int32, bitcast=True).to(tl.int64)
    key = tl.where(ids < VOCABULARY, (bits << 32) | (BLOCK - 1 - ids), -1)
    ordered = tl.sort(key, descending=True)
    sorted_probabilities = (ordered >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    stays = (ordered >= 0) & (ids < tl.where(top_k == 0, BLOCK, top_k))
    mass = tl.where(stays, sorted_probabilities, 0.0).to(tl.float64)
    before = tl.cumsum(mass, 0) - mass
    max_mass = tl.where(top_p < 1.0, top_p, 2.0).to(tl.float64) * tl.sum(mass, 0)
    inside = (before < max_mass) | (ids == 0)
    stays = stays & inside & (sorted_probabilities >= min_p * tl.max(probabilities, 0))
    last = tl.min(tl.where(stays, ordered, 0x7FFFFFFFFFFFFFFF), 0)
    return tl.where(key >= last, probabilities, 0.0)
