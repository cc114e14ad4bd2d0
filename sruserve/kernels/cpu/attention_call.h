/* Attention over a ragged batch: the threads' shares of the work, and the streams' rings. */
#include <stdlib.h>

_Static_assert(sizeof(struct attention) == 21 * 8, "Python packs 21 fields of 8 bytes");

enum { ATTENTION_SERIAL = 1 << 19 }; /* fewest keys x features (10 us) worth waking threads */

static void (*const ATTEND[])(const struct look *) = {
    attend_baseline,
#if defined(__x86_64__)
    attend_avx2,
    attend_avx512,
#endif
};

static int64_t ring_floats(const struct attention *c) {
    return c->window < 0 ? 0 : c->window * (c->chunked ? 4 : 2) * c->width;
}

static float *ring_of(const struct attention *c, int64_t row) {
    return row < 0 ? NULL : c->states + row * c->state_width + c->column;
}

/* Return the number of positions before this call, stored exactly below 2 * window and otherwise as
 * window + number % window. */
static int64_t seen_by(const struct attention *c, int64_t sequence) {
    const float *ring = ring_of(c, c->source[sequence]);
    return c->window < 0 || !ring ? 0 : (int64_t)ring[ring_floats(c)];
}

static int check_attention(const struct attention *c) {
    if (c->window >= 0 && (c->column < 0 || c->column + ring_floats(c) + 1 > c->state_width))
        return BAD_COLUMN;
    if (c->offsets[0] != 0 || c->offsets[c->sequences] > c->rows) return BAD_OFFSETS;
    for (int64_t i = 0; i < c->sequences; ++i) {
        const int64_t steps = c->offsets[i + 1] - c->offsets[i];
        if (steps < 0) return BAD_OFFSETS;
        if (c->source[i] < -1 || c->source[i] >= c->state_rows) return BAD_ROW;
        if (c->target[i] < -1 || c->target[i] >= c->state_rows) return BAD_ROW;
        const float *ring = ring_of(c, c->source[i]);
        if (c->window < 0 || !ring) continue;
        const float seen = ring[ring_floats(c)];
        if (!(seen >= 0 && seen < 2 * (float)c->window) || seen != (float)(int64_t)seen)
            return BAD_COUNT;
    }
    return OK;
}

struct attention_share {
    const struct attention *call;
    void (*attend)(const struct look *);
    float *scratch;
    int64_t queries, keys; /* capacity of each thread's scratch */
    _Atomic int64_t next, members;
};

static int64_t padded(int64_t floats) { return (floats + PAD - 1) / PAD * PAD; }

static int64_t scratch_floats(const struct attention_share *share) {
    const struct attention *c = share->call;
    return share->queries * (2 * padded(c->width / c->heads) + share->keys);
}

static int64_t pieces_of(const struct attention *c, int64_t sequence) {
    const int64_t steps = c->offsets[sequence + 1] - c->offsets[sequence];
    return (steps + SIDE_BY_SIDE - 1) / SIDE_BY_SIDE * c->heads;
}

/* Process piece `piece` of a sequence: SIDE_BY_SIDE queries of one head. */
static void attend_piece(const struct attention_share *share, int64_t sequence, int64_t piece,
                         float *scratch) {
    const struct attention *c = share->call;
    struct look look = {
        .call = c,
        .ring = ring_of(c, c->source[sequence]),
        .begin = c->offsets[sequence],
        .steps = c->offsets[sequence + 1] - c->offsets[sequence],
        .seen = seen_by(c, sequence),
        .head = piece % c->heads,
        .first = piece / c->heads * SIDE_BY_SIDE,
        .size = c->width / c->heads,
    };
    const int64_t left = look.steps - look.first;
    look.count = left < SIDE_BY_SIDE ? left : SIDE_BY_SIDE;
    look.row = padded(look.size);
    look.keys = share->keys;
    look.q = scratch;
    look.mixed = look.q + look.count * look.row;
    look.score = look.mixed + look.count * look.row;
    for (int64_t n = 0; n < look.count; ++n) {
        const int64_t position = look.seen + look.first + n;
        look.end[n] = c->window < 0 ? look.steps : position + 1;
        look.from[n] = c->window < 0 || position < c->window ? 0 : position - c->window;
        look.recent[n] = c->chunked ? position - position % c->window : 0;
    }
    share->attend(&look);
}

static void take_attention(void *data) {
    struct attention_share *share = data;
    const struct attention *c = share->call;
    const int64_t member = atomic_fetch_add_explicit(&share->members, 1, memory_order_relaxed);
    float *scratch = share->scratch + member * scratch_floats(share);
    int64_t sequence = 0, before = 0; /* pieces of the sequences before this one */
    for (;;) {
        const int64_t piece = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);
        while (sequence < c->sequences && piece >= before + pieces_of(c, sequence))
            before += pieces_of(c, sequence++);
        if (sequence >= c->sequences) return;
        attend_piece(share, sequence, piece - before, scratch);
    }
}

/* Write the source's ring and then the call's last keys and values to the target's ring. */
static void remember(const struct attention *c, int64_t sequence) {
    float *to = ring_of(c, c->target[sequence]);
    if (!to) return;
    const float *from = ring_of(c, c->source[sequence]);
    const int64_t seen = seen_by(c, sequence), floats = ring_floats(c);
    const int64_t begin = c->offsets[sequence], steps = c->offsets[sequence + 1] - begin;
    if (!from) memset(to, 0, floats * 4);
    else if (from != to && steps < c->window) memcpy(to, from, floats * 4);
    const int64_t pair = 2 * c->width, depth = c->chunked ? 2 * pair : pair;
    for (int64_t step = steps < c->window ? 0 : steps - c->window; step < steps; ++step) {
        float *slot = to + (seen + step) % c->window * depth;
        for (int64_t start = 0; start < depth; start += pair) {
            const char *rows = start ? c->memory : c->keys_values;
            if (c->bfloat16) {
                const uint16_t *half = (const uint16_t *)rows + (begin + step) * pair;
                for (int64_t i = 0; i < pair; ++i) {
                    const uint32_t bits = (uint32_t)half[i] << 16;
                    memcpy(slot + start + i, &bits, 4);
                }
            } else memcpy(slot + start, (const float *)rows + (begin + step) * pair, pair * 4);
        }
    }
    const int64_t now = seen + steps;
    to[floats] = (float)(now < 2 * c->window ? now : c->window + now % c->window);
}

static void take_rings(void *data) {
    struct attention_share *share = data;
    for (;;) {
        const int64_t next = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);
        if (next >= share->call->sequences) return;
        remember(share->call, next);
    }
}

/* Compute attention over a ragged batch. Writes nothing unless it returns OK. */
EXPORT int sru_attention(const struct attention *c) {
    const int bad = check_attention(c);
    if (bad) return bad;
    struct attention_share share = {.call = c, .attend = ATTEND[current()]};
    int64_t max_keys = 0;
    for (int64_t i = 0; i < c->sequences; ++i) {
        const int64_t steps = c->offsets[i + 1] - c->offsets[i], seen = seen_by(c, i) + steps;
        const int64_t keys = c->window < 0 || seen <= c->window ? seen : c->window + 1;
        if (steps > share.queries) share.queries = steps < SIDE_BY_SIDE ? steps : SIDE_BY_SIDE;
        if (keys > max_keys) max_keys = keys;
    }
    share.keys = padded(max_keys);
    const int alone = c->threads < 2 || !run_parallel;
    const int few = alone || c->rows * max_keys < ATTENTION_SERIAL / c->width;
    share.scratch = malloc((few ? 1 : c->threads) * scratch_floats(&share) * sizeof(float));
    if (!share.scratch && share.queries) return NO_MEMORY;
    if (few) take_attention(&share);
    else run_parallel(take_attention, &share, (unsigned)c->threads, 0);
    free(share.scratch);
    if (c->window < 0) return OK;
    atomic_store_explicit(&share.next, 0, memory_order_relaxed);
    if (alone || c->rows * c->width < ATTENTION_SERIAL) take_rings(&share);
    else run_parallel(take_rings, &share, (unsigned)c->threads, 0);
    return OK;
}
