"""Windowed attention in Triton: every query reads the ring of its stream by row number.

Keys come in blocks that are counted from the beginning of each window of positions, so a query sums
its keys in the same order whatever the split of time into calls, and the company.
"""

import triton
import triton.language as tl

from sruserve.kernels.triton.cell import LOG2_E, exp2


@triton.jit(do_not_specialize=["sequences", "state_width", "column", "alpha", "scale"])
def attention_kernel(
    q,
    keys_values,
    memory,
    residual,
    out,
    states,
    offsets,
    source,
    counts,
    sequences,
    state_width,
    column,
    alpha,
    scale,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    RING: tl.constexpr,
    ONE_STEP: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    DEPTH: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Mix VALUES features of one head for QUERIES adjacent queries of one sequence.

    WINDOW: 0 for the whole input. RING: numbers that a slot of the ring holds.
    """
    CHUNKS: tl.constexpr = (SIZE + VALUES - 1) // VALUES
    head = tl.program_id(1) // CHUNKS * SIZE
    value = tl.program_id(1) % CHUNKS * VALUES + tl.arange(0, VALUES)
    block = 0
    if ONE_STEP:
        sequence = tl.program_id(0)
        begin = sequence.to(tl.int64)
        length = 1
    else:
        sequence = sequence_of(offsets, sequences, tl.program_id(0), QUERIES)
        begin = tl.load(offsets + sequence)
        length = (tl.load(offsets + sequence + 1) - begin).to(tl.int32)
        block = tl.program_id(0) - (begin // QUERIES).to(tl.int32) - sequence
    ring = states + column
    seen = 0
    if WINDOW > 0:
        start = tl.load(source + sequence)
        ring += tl.maximum(start, 0) * state_width
        seen = tl.load(ring + WINDOW * RING, start >= 0, 0.0).to(tl.int32)
        seen = tl.minimum(tl.maximum(seen, 0), 2 * WINDOW - 1)  # whatever a row holds
        if (block == 0) & (tl.program_id(1) == 0):
            tl.store(counts + sequence, seen)
    query = block * QUERIES + tl.arange(0, QUERIES)
    is_query = query < length
    row = begin + query
    position = seen + query
    oldest = 0
    newest = seen + tl.minimum(block * QUERIES + QUERIES, length) - 1
    here = 0  # the window of positions in which the first query is, and the last
    there = 0
    if WINDOW > 0:
        oldest = tl.maximum(seen + block * QUERIES - WINDOW, 0)
        here = (seen + block * QUERIES) // WINDOW
        there = newest // WINDOW
        PER_WINDOW: tl.constexpr = (WINDOW + KEYS - 1) // KEYS
        first = oldest // WINDOW * PER_WINDOW + oldest % WINDOW // KEYS
        last = there * PER_WINDOW + newest % WINDOW // KEYS + 1
    else:
        first = 0
        last = (length + KEYS - 1) // KEYS
    last = tl.where(block * QUERIES < length, last, first)
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, VALUES], tl.float32)
    queries = q + row[:, None] * WIDTH + head
    for each in range(first, last):
        lap = 0
        slot = each * KEYS + tl.arange(0, KEYS)
        key = slot
        wanted = key < length
        if WINDOW > 0:
            lap = each // PER_WINDOW
            slot = each % PER_WINDOW * KEYS + tl.arange(0, KEYS)
            key = lap * WINDOW + slot
            wanted = (slot < WINDOW) & (key >= oldest) & (key <= newest)
        is_new = key >= seen
        # A vector, because the interpreter garbles `vector & scalar` masks.
        window_of_key = tl.zeros([KEYS], tl.int32) + lap
        new_row = begin + key - seen
        wanted_now = wanted
        if memory is not None:
            wanted_now = wanted & (window_of_key >= here)
        score = tl.zeros([QUERIES, KEYS], tl.float32)
        score = add_scores(
            score, queries, is_query, keys_values, new_row, ring, slot, 0, head, is_new,
            wanted_now, WIDTH, SIZE, WINDOW, RING, DEPTH,
        )  # fmt: skip
        values = load_features(
            keys_values, new_row, ring, slot, 0, WIDTH + head, value, is_new, wanted_now,
            WIDTH, SIZE, WINDOW, RING,
        )  # fmt: skip
        late = tl.zeros([QUERIES, KEYS], tl.int1)
        if memory is not None:
            # Queries of a later window see other keys and values of this position.
            wanted_late = wanted & (window_of_key < there)
            late = (position // WINDOW)[:, None] > window_of_key[None, :]
            late_score = tl.zeros([QUERIES, KEYS], tl.float32)
            late_score = add_scores(
                late_score, queries, is_query, memory, new_row, ring, slot, 2 * WIDTH, head,
                is_new, wanted_late, WIDTH, SIZE, WINDOW, RING, DEPTH,
            )  # fmt: skip
            late_values = load_features(
                memory, new_row, ring, slot, 2 * WIDTH, WIDTH + head, value, is_new, wanted_late,
                WIDTH, SIZE, WINDOW, RING,
            )  # fmt: skip
            score = tl.where(late, late_score, score)
        visible = is_query[:, None] & wanted[None, :]
        if WINDOW > 0:
            age = position[:, None] - key[None, :]
            visible = visible & (age >= 0) & (age <= WINDOW)
        score = tl.where(visible, score * (scale * LOG2_E), float("-inf"))
        highest = tl.maximum(top, tl.max(score, 1))
        base = tl.where(highest == float("-inf"), 0.0, highest)
        factor = exp2(top - base)
        weight = exp2(score - base[:, None])
        total = total * factor + tl.sum(weight, 1)
        mixed = mixed * factor[:, None]
        now = tl.where(late, 0.0, weight).to(values.dtype)
        mixed = tl.dot(now, values, mixed, input_precision="ieee")
        if memory is not None:
            before = tl.where(late, weight, 0.0).to(values.dtype)
            mixed = tl.dot(before, late_values, mixed, input_precision="ieee")
        top = highest
    place = row[:, None] * WIDTH + head + value[None, :]
    inside = is_query[:, None] & (value < SIZE)[None, :]
    own = tl.load(residual + place, inside, 0.0).to(tl.float32)
    mixed = mixed / total[:, None] * alpha + own
    tl.store(out + place, mixed.to(out.dtype.element_ty), inside)


@triton.jit
def sequence_of(offsets, sequences, block, QUERIES: tl.constexpr):
    """Return the sequence of a block of queries: the last one that begins at or before it.

    Sequence b has the blocks from `offsets[b] // QUERIES + b` on, which are enough for its length.
    """
    low = 0
    high = sequences
    while high - low > 1:
        middle = (low + high) // 2
        begins = tl.load(offsets + middle) // QUERIES + middle <= block
        low = tl.where(begins, middle, low)
        high = tl.where(begins, high, middle)
    return low


@triton.jit
def add_scores(
    score, queries, is_query, new, new_row, ring, slot, ring_column, head, is_new, wanted,
    WIDTH: tl.constexpr, SIZE: tl.constexpr, WINDOW: tl.constexpr, RING: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """Add the products of queries and keys over a head's features, DEPTH at a time."""
    for d in range(0, SIZE, DEPTH):
        feature = d + tl.arange(0, DEPTH)
        mask = is_query[:, None] & (feature < SIZE)[None, :]
        left = tl.load(queries + feature[None, :], mask, 0.0)
        right = load_features(
            new, new_row, ring, slot, ring_column, head, feature, is_new, wanted,
            WIDTH, SIZE, WINDOW, RING,
        )  # fmt: skip
        score = tl.dot(left, tl.trans(right), score, input_precision="ieee")
    return score


@triton.jit
def load_features(
    new, new_row, ring, slot, ring_column, first, feature, is_new, wanted,
    WIDTH: tl.constexpr, SIZE: tl.constexpr, WINDOW: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    """Load features of keys or values, (keys, features), from the call's rows and from the ring.

    first: the first feature of the head, among keys and values. ring_column: what comes before the
    keys in a slot. Zeros where they are not wanted.
    """
    inside = wanted[:, None] & (feature < SIZE)[None, :]
    place = new_row[:, None] * (2 * WIDTH) + first + feature[None, :]
    fresh = tl.load(new + place, inside & is_new[:, None], 0.0)
    if WINDOW > 0:
        place = slot[:, None] * RING + ring_column + first + feature[None, :]
        # What is stored was rounded to the dtype of the rows before, so this rounds nothing.
        stored = tl.load(ring + place, inside & (is_new == 0)[:, None], 0.0)
        fresh = tl.where(is_new[:, None], fresh, stored.to(fresh.dtype))
    return fresh


@triton.jit(do_not_specialize=["state_width", "column"])
def ring_kernel(
    keys_values,
    memory,
    states,
    offsets,
    source,
    target,
    counts,
    state_width,
    column,
    WIDTH: tl.constexpr,
    WINDOW: tl.constexpr,
    RING: tl.constexpr,
    SLOTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Store COLUMNS of a sequence's last WINDOW keys and values, and those before it copies."""
    sequence = tl.program_id(0)
    feature = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    begin = tl.load(offsets + sequence)
    new = (tl.load(offsets + sequence + 1) - begin).to(tl.int32)
    start = tl.load(source + sequence)
    end = tl.load(target + sequence)
    seen = tl.load(counts + sequence)
    newest = seen + new - 1
    ring = states + end * state_width + column
    before = states + start * state_width + column
    # In place nothing is copied, and a single step changes a single slot.
    first = 0
    last = (WINDOW + SLOTS - 1) // SLOTS
    if start == end:
        if new == 1:
            first = newest % WINDOW // SLOTS
            last = first + 1
        last = tl.where(new == 0, first, last)
    last = tl.where(end >= 0, last, first)
    for block in range(first, last):
        slot = block * SLOTS + tl.arange(0, SLOTS)
        inside = (slot < WINDOW)[:, None] & (feature < RING)[None, :]
        # The newest position in each slot; a sum that is not negative, for the remainder's sign.
        position = newest - (newest - slot + WINDOW) % WINDOW
        is_new = (position >= seen)[:, None] & inside
        row = begin + position - seen
        place = row[:, None] * (2 * WIDTH) + feature[None, :]
        own = (feature < 2 * WIDTH)[None, :]
        number = tl.load(keys_values + place, is_new & own, 0.0).to(tl.float32)
        if memory is not None:
            late = tl.load(
                memory + place - 2 * WIDTH, is_new & (feature >= 2 * WIDTH)[None, :], 0.0
            )
            number = tl.where(own, number, late.to(tl.float32))
        place = slot[:, None] * RING + feature[None, :]
        is_kept = inside & (is_new == 0)
        moves = tl.full([SLOTS, COLUMNS], 0, tl.int32) + (start != end).to(tl.int32) != 0
        starts = tl.full([SLOTS, COLUMNS], 0, tl.int32) + (start >= 0).to(tl.int32) != 0
        kept = tl.load(before + place, is_kept & moves & starts, 0.0)
        tl.store(ring + place, tl.where(is_new, number, kept), is_new | (is_kept & moves))
    if (tl.program_id(1) == 0) & (end >= 0):
        count = seen + new
        count = tl.where(count < 2 * WINDOW, count, WINDOW + count % WINDOW)
        tl.store(ring + WINDOW * RING, count.to(tl.float32))
