"""A hundred thousand streams at rest, each continued once in random order, by batches.

First their states are rows of one tensor, on the GPU, which a step reads and writes in place. Then
the engine keeps them, with its accounts: all on the GPU, and half of them in pinned host memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from bench.gpu_checks import name
from bench.gpu_clock import synchronize
from bench.gpu_context import Bench, Ceilings
from bench.gpu_decode import step_bytes
from bench.gpu_keeper import Keeper
from bench.gpu_model import LANGUAGE_MODEL, TINY, Size, random_decoder, random_streams
from bench.samples import Samples
from bench.targets import Target
from sruserve.kernels.graphs import Bursts
from sruserve.kernels.slots import Streams
from sruserve.server.engine.residents import Resident

_ROUNDS = 3
_PIECE = 1 << 28  # numbers that are drawn at a time
_NO_GROWTH = Target(most=0)


@dataclass(frozen=True, slots=True)
class Residents:
    """How many streams there are, and how many go on at a time."""

    streams: int
    batch: int


def resident_timings(bench: Bench, ceilings: Ceilings) -> None:
    """In place, and as the engine keeps them."""
    size = TINY if bench.quick else LANGUAGE_MODEL
    plan = Residents(10, 4) if bench.quick else Residents(100_000, 1024)
    told = f"{plan.streams:,} streams of {size.state_width * 4 / 1000:.3g} kB"
    states = _random_rows(bench, plan.streams, size)
    decoder = random_decoder(size, bench.dtype, states)
    bursts = Bursts(decoder.step, bench.device, plan.batch, 1)
    memory: list[tuple[int, int]] = []
    seconds = []
    for turn in range(_ROUNDS + 1):
        bench.report.doing(f"{told}, round {turn}")
        seconds.append(_round(bench, plan, size, bursts, seed=turn))
        memory.append(_memory(bench))
    floor = ceilings.floor_us(
        step_bytes(decoder, size, plan.batch), 2.0 * size.multiplied * plan.batch
    )
    floor *= plan.streams / plan.batch / 1e3
    _tell(bench, f"{told}, in place", plan, seconds[1:], floor)
    for place, what in enumerate(("allocated", "reserved")):
        growth = memory[-1][place] - memory[0][place]
        case = f"{told}: GPU memory {what} that rounds after the first add"
        bench.check(case, growth, "bytes", _NO_GROWTH)
    del states, decoder, bursts
    for on_host in (0, plan.streams // 2):
        _kept(bench, plan, size, told, on_host, floor)


def _kept(
    bench: Bench, plan: Residents, size: Size, told: str, on_host: int, floor_ms: float
) -> None:
    """The same by way of the engine's own keeping, with some of the states in host memory."""
    keeper = Keeper(bench, size.state_width, plan.streams - on_host, on_host, plan.batch)
    decoder = random_decoder(size, bench.dtype, keeper.pool.rows)
    bursts = Bursts(decoder.step, bench.device, plan.batch, 1)
    where = f"{told}, kept by the engine, {on_host:,} on the host"
    bench.report.doing(where)
    streams: list[Resident] = []
    while len(streams) < plan.streams:
        streams += keeper.begin(min(plan.batch, plan.streams - len(streams)))
    seconds, memory = [], []
    for turn in range(_ROUNDS + 1):
        seconds.append(_kept_round(bench, plan, size, bursts, keeper, streams, seed=turn))
        memory.append(_memory(bench))
    growth = memory[-1][1] - memory[0][1]
    case = f"{where}: GPU memory reserved that rounds after the first add"
    bench.check(case, growth, "bytes", _NO_GROWTH)
    floor = floor_ms
    if on_host:
        into, out = _link(bench, keeper.pool.rows)
        floor = on_host * size.state_width * 4 * max(1 / into, 1 / out) * 1e3
        bench.check("host memory to GPU", into / 1e9, "GB/s")
        bench.check("GPU to host memory", out / 1e9, "GB/s")
    _tell(bench, where, plan, seconds[1:], floor)


def _kept_round(
    bench: Bench,
    plan: Residents,
    size: Size,
    bursts: Bursts,
    keeper: Keeper,
    streams: list[Resident],
    seed: int,
) -> float:
    order = torch.randperm(plan.streams, generator=torch.Generator().manual_seed(seed))
    batches = torch.split(order, plan.batch)
    prepared = [random_streams(each, 1, size.vocabulary, seed=seed) for each in batches]
    synchronize(bench.device)
    begin = perf_counter()
    for places, batch in zip(batches, prepared, strict=True):

        def step(source: Sequence[int], target: Sequence[int], batch: Streams = batch) -> None:
            batch.source.copy_(torch.tensor(source))
            batch.target.copy_(torch.tensor(target))
            bursts.run(batch, 1)

        chosen = places.tolist()
        kept = keeper.go_on([streams[place] for place in chosen], step)
        for place, resident in zip(chosen, kept, strict=True):
            streams[place] = resident
    synchronize(bench.device)
    return perf_counter() - begin


def _round(
    bench: Bench,
    plan: Residents,
    size: Size,
    bursts: Bursts,
    seed: int,
) -> float:
    """Seconds in which every stream consumes one token and picks the next."""
    order = torch.randperm(plan.streams, generator=torch.Generator().manual_seed(seed))
    batches = torch.split(order, plan.batch)
    prepared = [random_streams(each, 1, size.vocabulary, seed=seed) for each in batches]
    synchronize(bench.device)
    begin = perf_counter()
    for streams in prepared:
        bursts.run(streams, 1)
    synchronize(bench.device)
    return perf_counter() - begin


def _tell(bench: Bench, case: str, plan: Residents, seconds: list[float], floor_ms: float) -> None:
    took = Samples(tuple(each * 1e3 for each in seconds), "ms")
    case = f"{case}, {name(bench.dtype)}, each continued once"
    bench.tell(case, {f"batches of {plan.batch}": took}, {"bytes or operations": floor_ms}, "ms")
    bench.check(f"{case}: states/s", plan.streams / took.median * 1e3, "1/s")


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
    """Bytes per second into the GPU and out of it, in one large copy each."""
    piece = states[: min(len(states), 4096)]
    host = torch.empty(piece.shape, pin_memory=bench.on_gpu).copy_(piece)
    found = []
    for to, source in ((piece, host), (host, piece)):
        to.copy_(source)
        synchronize(bench.device)
        begin = perf_counter()
        to.copy_(source)
        synchronize(bench.device)
        found.append(piece.nbytes / (perf_counter() - begin))
    return found[0], found[1]
