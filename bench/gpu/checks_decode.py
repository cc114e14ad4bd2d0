"""Checks before any measurement: steps, bursts, chunks and random draws."""

from collections.abc import Iterator

import torch
from torch import Tensor

from bench.gpu.checks import EXACTLY, differing, dtypes, name, unlike
from bench.gpu.context import Bench
from bench.gpu.model import LANGUAGE_MODEL, SMALL, TINY, random_decoder, random_streams
from bench.gpu.reference import allowed_tokens, relative_error
from bench.report.targets import Check, Target
from sruserve.kernels import Cell, RaggedBatch
from sruserve.kernels.chunks import plan, run_layers
from sruserve.kernels.decode import Decoder
from sruserve.kernels.graphs import Eager, GraphedDecode
from sruserve.kernels.reference.fixed_point import fixed_limit, fixed_product
from sruserve.kernels.side_stream import side_stream_for
from sruserve.kernels.slots import Slots
from sruserve.kernels.triton.tiles import MERGED_ROWS, merged_tile

_FAST = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}


def decode_checks(bench: Bench) -> Iterator[Check]:
    """Check steps against whole sequences, bursts against single steps, draws against float64."""
    for dtype in dtypes(bench)[:2]:
        yield from _steps(bench, dtype)
        yield from _fast(bench, dtype)
        yield from _bursts(bench, dtype)
        yield _sums(bench, dtype)
    yield from _chunks(bench)
    yield from _draws(bench)
    if not bench.quick:
        yield from _real_size(bench)


def _small(bench: Bench, dtype: torch.dtype, rows: int, fast: bool = False) -> Decoder:
    size = TINY if bench.quick else SMALL
    return random_decoder(
        size, dtype, bench.random(rows, size.state_width, dtype=torch.float32), fast
    )


def _steps(bench: Bench, dtype: torch.dtype) -> Iterator[Check]:
    """Check one launch for product and gates against a product and a scan of one step."""
    counts = (1, 3) if bench.quick else (1, 7, 64, 131)
    decoder = _small(bench, dtype, 2 * counts[-1])
    changed = 0.0
    for count in counts:
        source = torch.randperm(2 * counts[-1], device=bench.device)[:count]
        target = source.clone()
        source[1::3] = -1
        for number, layer in enumerate(decoder.layers):
            inputs = decoder.embedding.shape[1] if number == 0 else layer.width
            x = bench.random(count, inputs, dtype=dtype)
            stepped, scanned = decoder.states.clone(), decoder.states.clone()
            h = layer.step(x, stepped, source, target)
            batch = RaggedBatch(bench.arange(count + 1), scanned, source, target)
            changed += unlike(bench, layer(x, batch), h) + unlike(bench, scanned, stepped)
    label = f"step, {name(dtype)}: elements unlike product and scan"
    yield Check(label, changed, "", EXACTLY)


def _fast(bench: Bench, dtype: torch.dtype) -> Iterator[Check]:
    for count in (1, 3) if bench.quick else (1, 5, 300):
        rows = bench.arange(count)
        tokens = rows % 7
        logits = []
        for fast in (False, True):
            torch.manual_seed(count)  # both start from the same states
            logits.append(_small(bench, dtype, count, fast).logits(tokens, rows, rows))
        error = relative_error(logits[1], logits[0].cpu().double())
        label = f"fast, {count} streams, {name(dtype)}: error against default"
        yield Check(label, error, "", Target(maximum=_FAST[dtype]))


def _sums(bench: Bench, dtype: torch.dtype) -> Check:
    """Check the sums of merged steps against the reference, whose integers have one result."""
    from sruserve.kernels.triton.merged import SPARE, merged_step

    inputs, width, nexts = (16, 40, 24) if bench.quick else (512, 2048, 512)
    weight = bench.random(nexts, width, dtype=dtype, spread=width**-0.5)
    gates, changed = bench.random(2, width, dtype=torch.float32), 0.0
    for rows in range(1, MERGED_ROWS + 1):
        sums = torch.zeros(rows, nexts + SPARE, dtype=torch.int64, device=bench.device)
        each = bench.arange(rows)
        states = bench.random(rows, width, dtype=torch.float32)
        x, residual = (
            bench.random(rows, inputs, dtype=dtype),
            bench.random(rows, width, dtype=dtype),
        )
        planes = bench.random(3 * width, inputs, dtype=dtype, spread=inputs**-0.5)
        h = merged_step(
            x, planes, residual, gates, gates, states, each, each, 0, Cell(),
            next_weight=weight.T.contiguous(), next_sums=sums, limit=fixed_limit(weight),
            tile=merged_tile(rows),
        )  # fmt: skip
        expected, _ = fixed_product(h.cpu(), weight.cpu())
        changed += differing(sums[:, :nexts].cpu(), expected)
    return Check(f"merged steps, {name(dtype)}: sums unlike the reference", changed, "", EXACTLY)


def _bursts(bench: Bench, dtype: torch.dtype) -> Iterator[Check]:
    """Check replayed graphs, also of fewer streams, against launches with all streams."""
    max_streams, steps, counts = (2, 2, (2,)) if bench.quick else (37, 23, (1, 5, 37))
    decoder = _small(bench, dtype, 2 * max_streams)
    before = decoder.states.clone()
    vocabulary = decoder.embedding.shape[0]
    streams = random_streams(
        torch.randperm(2 * max_streams)[:max_streams], steps, vocabulary, filtered=True
    )
    streams.source[1::4] = -1

    def run(bursts: GraphedDecode, count: int) -> tuple[Tensor, Tensor]:
        decoder.states.copy_(before)
        tokens = bursts.run(streams.split(count)[0], steps)
        return tokens, decoder.states[streams.target[:count].to(bench.device)].clone()

    launched = GraphedDecode(decoder.step, bench.device, max_streams, steps, Eager(bench.device))
    expected, states = run(launched, max_streams)
    replayed = GraphedDecode(decoder.step, bench.device, max_streams, steps)
    for count in counts:
        tokens, result_states = run(replayed, count)
        changed = unlike(bench, tokens, expected[:, :count]) + unlike(
            bench, result_states, states[:count]
        )
        label = (
            f"burst of {count}, {name(dtype)}: tokens and states unlike launches of {max_streams}"
        )
        yield Check(label, changed, "", EXACTLY)


def _chunks(bench: Bench) -> Iterator[Check]:
    """Check concurrent recurrences and products several times, because a race shows rarely."""
    decoder = _small(bench, bench.dtype, 8)
    lengths = [4, 6] if bench.quick else [300, 10, 511, 512, 77]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    rows = torch.arange(len(lengths))
    x = bench.random(sum(lengths), decoder.embedding.shape[1])
    before = decoder.states.clone()

    def run(chunk_rows: int) -> tuple[Tensor, Tensor]:
        decoder.states.copy_(before)
        planned = plan(RaggedBatch(offsets, decoder.states, rows, rows), chunk_rows)
        moved = x if planned.order is None else x[planned.order.to(bench.device)]
        parts = [moved[first:end] for first, end, _ in planned.chunks]
        batches = [batch for *_, batch in planned.chunks]
        result = torch.cat(
            run_layers(decoder.layers, parts, batches, side_stream_for(bench.device))
        )
        places = planned.places(torch.arange(len(x))).to(bench.device)
        return result[places], decoder.states.clone()

    h, states = run(1 << 30)
    changed = 0.0
    for _ in range(1 if bench.quick else 5):
        result, after = run(sum(lengths) // 4)
        changed += unlike(bench, result, h) + unlike(bench, after, states)
    yield Check("chunks of time: elements unlike the whole", changed, "", EXACTLY)


def _draws(bench: Bench) -> Iterator[Check]:
    """Check three draws of streams with every mix of filters, and without filters."""
    decoder = _small(bench, bench.dtype, 1)
    for vocabulary in (20,) if bench.quick else (256, 1000):
        for filtered in (False, True):
            count, wrong = (3 if bench.quick else 96), 0.0
            streams = random_streams(torch.arange(count), 3, vocabulary, filtered, seed=vocabulary)
            slots = Slots(count, 3, bench.device)
            slots.load(streams)
            slots.begin(streams.source, streams.target, streams.limits)
            for step in range(3):
                logits = bench.random(count, vocabulary, dtype=torch.float32, spread=3.0)
                allowed = allowed_tokens(logits, streams, step)
                decoder.pick(logits, slots)
                tokens = slots.tokens.cpu()
                wrong += float((tokens != allowed).all(0).sum())
                wrong += float((slots.history[step].cpu() != tokens).sum())
                streams.window[:, step] = tokens
            how = "every filter" if filtered else "no filter"
            label = f"draws from {vocabulary}, {how}: tokens unlike float64's"
            yield Check(label, wrong, "", EXACTLY)


def _real_size(bench: Bench) -> Iterator[Check]:
    """Check the model of the decode timings: few streams get the same bits as many."""
    size, max_streams = LANGUAGE_MODEL, 300
    states = bench.random(max_streams, size.state_width, dtype=torch.float32)
    decoder = random_decoder(size, bench.dtype, states)
    before = states.clone()
    tokens = torch.randint(0, size.vocabulary, (4, max_streams), device=bench.device)

    def run(count: int) -> tuple[Tensor, Tensor]:
        states.copy_(before)
        rows = bench.arange(count)
        return decoder.logits(tokens[0, :count], rows, rows), states[:count].clone()

    logits, after = run(max_streams)
    changed = 0.0
    for count in (1, 8, 64, 129):
        result, result_states = run(count)
        changed += unlike(bench, result, logits[:count]) + unlike(
            bench, result_states, after[:count]
        )
    label = f"{size.layers} x {size.width}: elements of few streams unlike those of {max_streams}"
    yield Check(label, changed, "", EXACTLY)
    yield Check(
        f"{size.layers} x {size.width}: NaN scores", float(logits.isnan().sum()), "", EXACTLY
    )
