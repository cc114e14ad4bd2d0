"""Characters of a language model, one step at a time: one stream, many, and where a step goes."""

import gc
from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

from bench.gpu_checks import name
from bench.gpu_clock import captured, synchronize
from bench.gpu_context import Bench, Ceilings
from bench.gpu_launches import count_launches
from bench.gpu_model import (
    LANGUAGE_MODEL,
    TINY,
    Size,
    cell_layers,
    random_decoder,
    random_streams,
    weight_bytes,
)
from bench.samples import interleave
from bench.targets import TOLD, Target
from sruserve.kernels.decode import Decoder
from sruserve.kernels.graphs import Bursts
from sruserve.kernels.slots import Slots

BURST = 16
_COUNTS = (1, 8, 64, 256, 1024)
_ALONE = Target(most=80)
_CROWD = Target(least=3e6)


def decode_timings(bench: Bench, ceilings: Ceilings) -> None:
    """All rows of decoding."""
    size = TINY if bench.quick else LANGUAGE_MODEL
    counts = (1, 3) if bench.quick else _COUNTS
    states = bench.random(2 * counts[-1], size.state_width, dtype=torch.float32)
    decoders = {
        how: random_decoder(size, bench.dtype, states, fast=how == "fast")
        for how in ("default", "fast")
    }
    bursts = {how: _captured_bursts(bench, how, each, counts[-1]) for how, each in decoders.items()}
    for count in counts:
        _curve(bench, ceilings, size, decoders["default"], bursts, count)
    for count in (counts[0], counts[-1]):
        _parts(bench, ceilings, size, decoders, count)
    count_launches(bench, decoders["default"])


def step_bytes(decoder: Decoder, size: Size, count: int) -> int:
    """What a step of `count` streams has to move: weights once, every state in and out."""
    return weight_bytes(decoder) + count * size.state_width * 8


def _captured_bursts(bench: Bench, how: str, decoder: Decoder, most: int) -> Bursts:
    """All graphs, with the time and the memory that they take."""
    bench.report.doing(f"graphs, {how}")
    gc.collect()
    before, begin = _memory_in_use(bench), perf_counter()
    bursts = Bursts(decoder.step, bench.device, most, 2 if bench.quick else BURST)
    synchronize(bench.device)
    bench.check(f"decode, {how}: seconds to capture all graphs", perf_counter() - begin, "s")
    used = (_memory_in_use(bench) - before) / 2**20
    bench.check(f"decode, {how}: GPU memory of all graphs", used, "MiB")
    return bursts


def _memory_in_use(bench: Bench) -> int:
    """Bytes of the whole device: what a graph holds is in no count of torch's."""
    if not bench.on_gpu:
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free


def _curve(
    bench: Bench,
    ceilings: Ceilings,
    size: Size,
    decoder: Decoder,
    bursts: dict[str, Bursts],
    count: int,
) -> None:
    """Bursts as the server runs them: from tokens on the host to tokens on the host."""
    steps = 2 if bench.quick else BURST
    rows = torch.randperm(len(decoder.states))[:count]
    candidates: dict[str, Callable[[], object]] = {}
    for how, each in bursts.items():
        candidates[how] = _burst(each, rows, steps, size.vocabulary, filtered=False)
        if count in (1, 1024):
            every = _burst(each, rows, steps, size.vocabulary, filtered=True)
            candidates[f"{how}, every filter"] = every
    case = f"decode, S {count}, {name(bench.dtype)}, bursts of {steps}: a step"
    bench.report.doing(case)
    found = interleave(candidates, bench.rounds, "us", 1e6 / steps)
    nbytes = step_bytes(decoder, size, count)
    floor = ceilings.floor_us(nbytes, 2.0 * size.multiplied * count)
    bench.tell(case, found, {"bytes or operations": floor}, "us")
    for how, samples in found.items():
        plain = how in bursts
        if count == 1:
            aim = _ALONE if plain else TOLD
            bench.check(f"decode, S 1, {how}: us per character", samples.median, "us", aim)
        rate = count / samples.median * 1e6
        aim = _CROWD if plain and count == 1024 else TOLD
        bench.check(f"decode, S {count}, {how}: characters/s", rate, "1/s", aim)
    bench.check(f"decode, S {count}, floor: characters/s", count / floor * 1e6, "1/s")


def _burst(
    bursts: Bursts, rows: Tensor, steps: int, vocabulary: int, filtered: bool
) -> Callable[[], object]:
    streams = random_streams(rows, steps, vocabulary, filtered)
    return lambda: bursts.run(streams, steps)


def _parts(
    bench: Bench, ceilings: Ceilings, size: Size, decoders: dict[str, Decoder], count: int
) -> None:
    """A step as one graph, and each kind of launch in it as a graph of its own."""
    rows = torch.randperm(len(decoders["default"].states))[:count]
    streams = random_streams(rows, 1, size.vocabulary)
    for how, decoder in decoders.items():
        slots = Slots(count, 1, bench.device)
        slots.load(streams)
        work = _part_work(bench, decoder, slots)
        candidates = {each: captured(run, bench.device) for each, run in work.items()}
        weights = weight_bytes(decoder)
        floors = {
            "bytes or operations": ceilings.floor_us(
                step_bytes(decoder, size, count), 2.0 * size.multiplied * count
            ),
            "weights alone": ceilings.floor_us(weights),
        }
        case = f"parts of a step, S {count}, {how}"
        found = bench.time(case, candidates, floors=floors)
        parts = sum(found[each].median for each in work if each != "whole step")
        bench.check(f"{case}: whole step / its parts", found["whole step"].median / parts, "x")


def _part_work(bench: Bench, decoder: Decoder, slots: Slots) -> dict[str, Callable[[], object]]:
    """What a step does, part by part, each over all layers."""
    count, width = slots.size, decoder.head.inputs
    x = bench.random(count, width)
    logits = decoder.head.step(x, dtype=torch.float32)
    first, *others = cell_layers(decoder)

    def whole() -> None:
        decoder.step(slots)

    def entry() -> None:
        first.step(decoder.embedding, decoder.states, slots.source, slots.target, slots.tokens)

    def projections() -> None:
        for layer in others:
            if layer.projection is not None:
                layer.projection.step(x)

    def gates() -> None:
        from sruserve.kernels.tiles import step_tile
        from sruserve.kernels.triton_product import capability
        from sruserve.kernels.triton_step import triton_step

        tile = step_tile(count, x.dtype, capability(x.device), first.fast)
        for layer in others:
            triton_step(
                z, layer.product.weight, None, x, layer.weight_c, layer.bias, decoder.states,
                slots.source, slots.target, layer.column, layer.cell, tile=tile,
            )  # fmt: skip

    def head() -> None:
        decoder.head.step(x, dtype=torch.float32)

    z = bench.random(count, others[0].product.inputs)
    return {
        "whole step": whole,
        "first layer": entry,
        "projections of the others": projections,
        "product and gates of the others": gates,
        "head": head,
        "sampling": lambda: decoder.pick(logits, slots),
    }
