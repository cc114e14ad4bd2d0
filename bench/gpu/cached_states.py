"""A hundred thousand idle streams, each continued once in random order, in batches.

First, their states are rows of one tensor on the GPU, which a step reads and writes in place. Then
they are in the engine's state cache: all on the GPU, or half of them in pinned host memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from bench.gpu.checks import name
from bench.gpu.clock import synchronize
from bench.gpu.context import Bench, Ceilings
from bench.gpu.decode import step_bytes
from bench.gpu.model import LANGUAGE_MODEL, TINY, Size, random_decoder, random_streams
from bench.gpu.state_cache import CachedStreams
from bench.report.samples import Samples
from bench.report.targets import Target
from sruserve.kernels.graphs import GraphedDecode
from sruserve.kernels.slots import DecodeInputs
from sruserve.server.engine.state_cache.cache import CachedState

_ROUNDS = 3
_PIECE = 1 << 28  # random numbers that are drawn at a time
_NO_GROWTH = Target(maximum=0)


@dataclass(frozen=True, slots=True)
class Workload:
    """The number of streams, and of those that continue at a time."""

    streams: int
    batch: int


def cached_state_timings(bench: Bench, ceilings: Ceilings) -> None:
    """Measure states in place, and states in the engine's cache."""
    size = TINY if bench.quick else LANGUAGE_MODEL
    workload = Workload(10, 4) if bench.quick else Workload(100_000, 1024)
    description = f"{workload.streams:,} streams of {size.state_width * 4 / 1000:.3g} kB"
    states = _random_rows(bench, workload.streams, size)
    decoder = random_decoder(size, bench.dtype, states)
    bursts = GraphedDecode(decoder.step, bench.device, workload.batch, 1)
    memory: list[tuple[int, int]] = []
    seconds = []
    for turn in range(_ROUNDS + 1):
        bench.report.progress(f"{description}, round {turn}")
        seconds.append(_in_place_round(bench, workload, size, bursts, seed=turn))
        memory.append(_memory(bench))
    floor = ceilings.floor_us(
        step_bytes(decoder, size, workload.batch), 2.0 * size.multiplied * workload.batch
    )
    floor *= workload.streams / workload.batch / 1e3
    _report(bench, f"{description}, in place", workload, seconds[1:], floor)
    for place, kind in enumerate(("allocated", "reserved")):
        growth = memory[-1][place] - memory[0][place]
        case = f"{description}: GPU memory {kind} that rounds after the first add"
        bench.check(case, growth, "bytes", _NO_GROWTH)
    del states, decoder, bursts
    for on_host in (0, workload.streams // 2):
        _in_cache(bench, workload, size, description, on_host, floor)


def _in_cache(
    bench: Bench, workload: Workload, size: Size, description: str, on_host: int, floor_ms: float
) -> None:
    """Measure with the engine's own cache, with `on_host` states in host memory."""
    cached_streams = CachedStreams(
        bench, size.state_width, workload.streams - on_host, on_host, workload.batch
    )
    decoder = random_decoder(size, bench.dtype, cached_streams.pool.rows)
    bursts = GraphedDecode(decoder.step, bench.device, workload.batch, 1)
    label = f"{description}, kept by the engine, {on_host:,} on the host"
    bench.report.progress(label)
    streams: list[CachedState] = []
    while len(streams) < workload.streams:
        streams += cached_streams.create(min(workload.batch, workload.streams - len(streams)))
    seconds, memory = [], []
    for turn in range(_ROUNDS + 1):
        seconds.append(
            _cache_round(bench, workload, size, bursts, cached_streams, streams, seed=turn)
        )
        memory.append(_memory(bench))
    growth = memory[-1][1] - memory[0][1]
    case = f"{label}: GPU memory reserved that rounds after the first add"
    bench.check(case, growth, "bytes", _NO_GROWTH)
    floor = floor_ms
    if on_host:
        into, out = _link(bench, cached_streams.pool.rows)
        floor = on_host * size.state_width * 4 * max(1 / into, 1 / out) * 1e3
        bench.check("host memory to GPU", into / 1e9, "GB/s")
        bench.check("GPU to host memory", out / 1e9, "GB/s")
    _report(bench, label, workload, seconds[1:], floor)


def _cache_round(
    bench: Bench,
    workload: Workload,
    size: Size,
    bursts: GraphedDecode,
    cached_streams: CachedStreams,
    streams: list[CachedState],
    seed: int,
) -> float:
    order = torch.randperm(workload.streams, generator=torch.Generator().manual_seed(seed))
    batches = torch.split(order, workload.batch)
    prepared = [random_streams(each, 1, size.vocabulary, seed=seed) for each in batches]
    synchronize(bench.device)
    begin = perf_counter()
    for places, batch in zip(batches, prepared, strict=True):

        def step(source: Sequence[int], target: Sequence[int], batch: DecodeInputs = batch) -> None:
            batch.source.copy_(torch.tensor(source))
            batch.target.copy_(torch.tensor(target))
            bursts.run(batch, 1)

        chosen = places.tolist()
        advanced = cached_streams.advance([streams[place] for place in chosen], step)
        for place, state in zip(chosen, advanced, strict=True):
            streams[place] = state
    synchronize(bench.device)
    return perf_counter() - begin


def _in_place_round(
    bench: Bench,
    workload: Workload,
    size: Size,
    bursts: GraphedDecode,
    seed: int,
) -> float:
    """Return the seconds in which every stream consumes one token and picks the next."""
    order = torch.randperm(workload.streams, generator=torch.Generator().manual_seed(seed))
    batches = torch.split(order, workload.batch)
    prepared = [random_streams(each, 1, size.vocabulary, seed=seed) for each in batches]
    synchronize(bench.device)
    begin = perf_counter()
    for streams in prepared:
        bursts.run(streams, 1)
    synchronize(bench.device)
    return perf_counter() - begin


def _report(
    bench: Bench, case: str, workload: Workload, seconds: list[float], floor_ms: float
) -> None:
    took = Samples(tuple(each * 1e3 for each in seconds), "ms")
    case = f"{case}, {name(bench.dtype)}, each continued once"
    bench.add_case(
        case, {f"batches of {workload.batch}": took}, {"bytes or operations": floor_ms}, "ms"
    )
    bench.check(f"{case}: states/s", workload.streams / took.median * 1e3, "1/s")


def _random_rows(bench: Bench, rows: int, size: Size) -> Tensor:
    states = torch.empty(rows, size.state_width, device=bench.device)
    for piece in torch.split(states, max(1, _PIECE // size.state_width)):
        piece.normal_()
    return states


def _memory(bench: Bench) -> tuple[int, int]:
    if not bench.on_gpu:
        return 0, 0
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def _link(bench: Bench, states: Tensor) -> tuple[float, float]:
    """Measure bytes per second to the GPU and from it, in one large copy each."""
    piece = states[: min(len(states), 4096)]
    host = torch.empty(piece.shape, pin_memory=bench.on_gpu).copy_(piece)
    rates = []
    for to, source in ((piece, host), (host, piece)):
        to.copy_(source)
        synchronize(bench.device)
        begin = perf_counter()
        to.copy_(source)
        synchronize(bench.device)
        rates.append(piece.nbytes / (perf_counter() - begin))
    return rates[0], rates[1]
