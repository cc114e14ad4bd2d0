"""Decoding with a language model: one stream, many streams, and a breakdown of a step."""

import gc
from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

from bench.gpu.checks import name
from bench.gpu.clock import captured, synchronize
from bench.gpu.context import Bench, Ceilings
from bench.gpu.launches import count_launches
from bench.gpu.model import (
    LANGUAGE_MODEL,
    TINY,
    Size,
    cell_layers,
    random_decoder,
    random_streams,
    weight_bytes,
)
from bench.report.samples import interleave
from bench.report.targets import NO_TARGET, Target
from sruserve.kernels.decode import Decoder
from sruserve.kernels.graphs import GraphedDecode
from sruserve.kernels.slots import Slots

BURST = 16
_COUNTS = (1, 8, 64, 256, 1024)
_SINGLE_STREAM = Target(maximum=80)
_LARGE_BATCH = Target(minimum=3e6)


def decode_timings(bench: Bench, ceilings: Ceilings) -> None:
    """Measure decoding."""
    size = TINY if bench.quick else LANGUAGE_MODEL
    counts = (1, 3) if bench.quick else _COUNTS
    states = bench.random(2 * counts[-1], size.state_width, dtype=torch.float32)
    decoders = {
        mode: random_decoder(size, bench.dtype, states, fast=mode == "fast")
        for mode in ("default", "fast")
    }
    bursts = {
        mode: _captured_bursts(bench, mode, each, counts[-1]) for mode, each in decoders.items()
    }
    for count in counts:
        _curve(bench, ceilings, size, decoders["default"], bursts, count)
    for count in (counts[0], counts[-1]):
        _parts(bench, ceilings, size, decoders, count)
    count_launches(bench, decoders)


def step_bytes(decoder: Decoder, size: Size, count: int) -> int:
    """Return the bytes that a step of `count` streams moves: weights once, states in and out."""
    return weight_bytes(decoder) + count * size.state_width * 8


def _captured_bursts(bench: Bench, mode: str, decoder: Decoder, max_streams: int) -> GraphedDecode:
    """Capture all graphs, and record their time and memory."""
    bench.report.progress(f"graphs, {mode}")
    gc.collect()
    before, begin = _memory_in_use(bench), perf_counter()
    bursts = GraphedDecode(decoder.step, bench.device, max_streams, 2 if bench.quick else BURST)
    synchronize(bench.device)
    bench.check(f"decode, {mode}: seconds to capture all graphs", perf_counter() - begin, "s")
    used = (_memory_in_use(bench) - before) / 2**20
    bench.check(f"decode, {mode}: GPU memory of all graphs", used, "MiB")
    return bursts


def _memory_in_use(bench: Bench) -> int:
    """Return the bytes in use on the device; torch does not count a graph's memory."""
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
    bursts: dict[str, GraphedDecode],
    count: int,
) -> None:
    """Measure bursts as the server runs them: from tokens on the host to tokens on the host."""
    steps = 2 if bench.quick else BURST
    rows = torch.randperm(len(decoder.states))[:count]
    candidates: dict[str, Callable[[], object]] = {}
    for mode, each in bursts.items():
        candidates[mode] = _burst(each, rows, steps, size.vocabulary, filtered=False)
        if count in (1, 1024):
            filtered = _burst(each, rows, steps, size.vocabulary, filtered=True)
            candidates[f"{mode}, every filter"] = filtered
    case = f"decode, S {count}, {name(bench.dtype)}, bursts of {steps}: a step"
    bench.report.progress(case)
    samples_by_name = interleave(candidates, bench.rounds, "us", 1e6 / steps)
    nbytes = step_bytes(decoder, size, count)
    floor = ceilings.floor_us(nbytes, 2.0 * size.multiplied * count)
    bench.add_case(case, samples_by_name, {"bytes or operations": floor}, "us")
    for mode, samples in samples_by_name.items():
        plain = mode in bursts
        if count == 1:
            target = _SINGLE_STREAM if plain else NO_TARGET
            bench.check(f"decode, S 1, {mode}: us per character", samples.median, "us", target)
        rate = count / samples.median * 1e6
        target = _LARGE_BATCH if plain and count == 1024 else NO_TARGET
        bench.check(f"decode, S {count}, {mode}: characters/s", rate, "1/s", target)
    bench.check(f"decode, S {count}, floor: characters/s", count / floor * 1e6, "1/s")


def _burst(
    bursts: GraphedDecode, rows: Tensor, steps: int, vocabulary: int, filtered: bool
) -> Callable[[], object]:
    streams = random_streams(rows, steps, vocabulary, filtered)
    return lambda: bursts.run(streams, steps)


def _parts(
    bench: Bench, ceilings: Ceilings, size: Size, decoders: dict[str, Decoder], count: int
) -> None:
    """Measure a step as one graph, and each kind of launch in it as its own graph."""
    rows = torch.randperm(len(decoders["default"].states))[:count]
    streams = random_streams(rows, 1, size.vocabulary)
    for mode, decoder in decoders.items():
        slots = Slots(count, 1, bench.device)
        slots.load(streams)
        slots.begin(streams.source, streams.target, streams.limits)
        work = _part_work(bench, decoder, slots)
        candidates = {each: captured(run, bench.device) for each, run in work.items()}
        weights = weight_bytes(decoder)
        floors = {
            "bytes or operations": ceilings.floor_us(
                step_bytes(decoder, size, count), 2.0 * size.multiplied * count
            ),
            "weights alone": ceilings.floor_us(weights),
        }
        case = f"parts of a step, S {count}, {mode}"
        samples = bench.time(case, candidates, floors=floors)
        parts = sum(samples[each].median for each in work if each != "whole step")
        bench.check(f"{case}: whole step / its parts", samples["whole step"].median / parts, "x")


def _part_work(bench: Bench, decoder: Decoder, slots: Slots) -> dict[str, Callable[[], object]]:
    """Return the parts of a step, each over all layers."""
    count, width = slots.size, decoder.head.inputs
    x = bench.random(count, width)
    logits = decoder.head.step(x, dtype=torch.float32)
    first, *others = cell_layers(decoder)

    def whole_step() -> None:
        decoder.step(slots)

    def first_layer() -> None:
        first.step(decoder.embedding, decoder.states, slots.source, slots.target, slots.tokens)

    def projections() -> None:
        for layer in others:
            if layer.projection is not None:
                layer.projection.step(x)

    def gates() -> None:
        from sruserve.kernels.triton.linear import capability
        from sruserve.kernels.triton.step import triton_step
        from sruserve.kernels.triton.tiles import step_tile

        tile = step_tile(count, x.dtype, capability(x.device), first.fast)
        for layer in others:
            triton_step(
                z, layer.linear.weight, None, x, layer.weight_c, layer.bias, decoder.states,
                slots.source, slots.target, layer.column, layer.cell, tile=tile,
            )  # fmt: skip

    def head() -> None:
        decoder.head.step(x, dtype=torch.float32)

    z = bench.random(count, others[0].linear.inputs)
    return {
        "whole step": whole_step,
        "first layer": first_layer,
        "projections of the others": projections,
        "product and gates of the others": gates,
        "head": head,
        "sampling": lambda: decoder.pick(logits, slots),
    }
