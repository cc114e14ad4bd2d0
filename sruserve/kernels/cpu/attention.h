/* Windowed attention over rings of keys and values, with the vectors of one instruction set.
 *
 * A score is one chain of FMAs over a head's features, and a mixed value is one chain over time. So
 * the bits of a query do not depend on the other queries.
 */
#ifndef ATTENTION_TYPES
#define ATTENTION_TYPES

enum { QUERIES = 4 };       /* queries that share the loads of a key or value */
enum { SIDE_BY_SIDE = 16 }; /* queries of one look, which share a tile of keys in cache */
enum { TILE = 32 };         /* keys in a tile */
enum { CHAINS = 8 };        /* concurrent chains of FMAs: enough to hide their latency */
enum { PAD = 16 };          /* floats of the widest vector; rows of scratch are multiples of it */

/* The arguments of `reference_attention`, in the order in which `attention.py` packs them. */
struct attention {
    const char *q, *keys_values, *memory, *residual; /* memory: only if `chunked` */
    char *out;
    float *states;
    const int64_t *offsets, *source, *target;
    int64_t rows, width, heads, window; /* window: -1 if every query sees every row */
    int64_t sequences, state_rows, state_width, column, bfloat16, chunked, threads;
    double alpha;
};

/* Adjacent queries of one sequence and one head, and the positions that they see. */
struct look {
    const struct attention *call;
    const float *ring;                /* NULL: an empty ring */
    int64_t begin, steps, seen, head; /* seen: positions before this call */
    int64_t first, count;             /* queries, counted from the call's first step */
    int64_t size, row, keys;          /* features of a head; floats of a row of q and of scores */
    int64_t from[SIDE_BY_SIDE], end[SIDE_BY_SIDE]; /* positions that each query sees */
    int64_t recent[SIDE_BY_SIDE];                  /* earlier positions are read from `memory` */
    float *q, *mixed, *score;
};

/* Keys at a distance of `stride` bytes; the values are `values` bytes after their keys. */
struct run {
    const char *keys;
    int64_t stride, values, count;
    int bfloat16;
};

/* Return the keys from position `from` on that are evenly spaced, up to `end`. */
static inline struct run run_from(const struct look *l, int64_t query, int64_t from, int64_t end) {
    const struct attention *c = l->call;
    const int memory = c->chunked && from < l->recent[query];
    if (memory && end > l->recent[query]) end = l->recent[query];
    struct run run = {.bfloat16 = from >= l->seen && c->bfloat16};
    const int64_t size = run.bfloat16 ? 2 : 4;
    run.values = c->width * size;
    if (from < l->seen) {
        const int64_t slot = from % c->window, depth = (c->chunked ? 4 : 2) * c->width;
        if (end > l->seen) end = l->seen;
        if (end > from + c->window - slot) end = from + c->window - slot;
        run.keys = (const char *)(l->ring + slot * depth + (memory ? 2 * c->width : 0));
        run.stride = depth * size;
    } else {
        run.stride = 2 * c->width * size;
        run.keys = memory ? c->memory : c->keys_values;
        run.keys += (l->begin + from - l->seen) * run.stride;
    }
    run.keys += l->head * l->size * size;
    run.count = end - from;
    return run;
}
#endif

/* Add `left` features from `i` on to the scores of `queries` x `keys`. */
TARGET INLINE void NAME(dot)(vf *sum, const struct look *l, const float *q, const char *at,
                             int64_t stride, int64_t i, int64_t left, int queries, int keys,
                             int bfloat16) {
    vf x[QUERIES];
#pragma GCC unroll 4
    for (int n = 0; n < queries; ++n)
        x[n] = NAME(load)((const char *)(q + n * l->row + i), LANES, 0);
#pragma GCC unroll 8
    for (int k = 0; k < keys; ++k) {
        const vf y = NAME(load)(at + k * stride + i * (bfloat16 ? 2 : 4), left, bfloat16);
#pragma GCC unroll 4
        for (int n = 0; n < queries; ++n) sum[n * keys + k] = FMA(x[n], y, sum[n * keys + k]);
    }
}

TARGET INLINE void NAME(dots)(const struct look *l, const float *q, float *const *score,
                              const struct run *run, int64_t key, int queries, int keys,
                              int bfloat16) {
    const char *at = run->keys + key * run->stride;
    vf sum[CHAINS];
    for (int n = 0; n < queries * keys; ++n) sum[n] = (vf){0};
    int64_t i = 0;
    for (; i + LANES <= l->size; i += LANES)
        NAME(dot)(sum, l, q, at, run->stride, i, LANES, queries, keys, bfloat16);
    if (i < l->size)
        NAME(dot)(sum, l, q, at, run->stride, i, l->size - i, queries, keys, bfloat16);
#pragma GCC unroll 4
    for (int n = 0; n < queries; ++n)
#pragma GCC unroll 8
        for (int k = 0; k < keys; ++k) score[n][key + k] = NAME(total)(sum[n * keys + k]);
}

/* Add `keys` values, weighted by the scores, to the features from `i` on of the mixed values. */
TARGET INLINE void NAME(add)(const struct look *l, float *mixed, float *const *score,
                             const char *at, int64_t stride, int64_t key, int64_t i, int64_t left,
                             int queries, int keys, int bfloat16) {
    vf sum[QUERIES];
#pragma GCC unroll 4
    for (int n = 0; n < queries; ++n)
        sum[n] = NAME(load)((const char *)(mixed + n * l->row + i), LANES, 0);
#pragma GCC unroll 8
    for (int k = 0; k < keys; ++k) {
        const vf y = NAME(load)(at + k * stride + i * (bfloat16 ? 2 : 4), left, bfloat16);
#pragma GCC unroll 4
        for (int n = 0; n < queries; ++n) sum[n] = FMA(NAME(all)(score[n][key + k]), y, sum[n]);
    }
#pragma GCC unroll 4
    for (int n = 0; n < queries; ++n)
        NAME(store)((char *)(mixed + n * l->row + i), sum[n], LANES, 0);
}

TARGET INLINE void NAME(mix)(const struct look *l, float *mixed, float *const *score,
                             const struct run *run, int64_t key, int queries, int keys,
                             int bfloat16) {
    const char *at = run->keys + run->values + key * run->stride;
    int64_t i = 0;
    for (; i + LANES <= l->size; i += LANES)
        NAME(add)(l, mixed, score, at, run->stride, key, i, LANES, queries, keys, bfloat16);
    if (i < l->size)
        NAME(add)(l, mixed, score, at, run->stride, key, i, l->size - i, queries, keys, bfloat16);
}

/* Process `queries` adjacent queries from `query` on, over positions `from` to `end`, which all of
 * them see. */
TARGET INLINE void NAME(over)(const struct look *l, int64_t query, int queries, int64_t from,
                              int64_t end, int mixing) {
    const float *q = l->q + query * l->row;
    float *mixed = l->mixed + query * l->row, *score[QUERIES];
    while (from < end) {
        const struct run run = run_from(l, query, from, end);
        for (int n = 0; n < queries; ++n)
            score[n] = l->score + (query + n) * l->keys + from - l->from[query + n];
        const int keys = mixing ? CHAINS : CHAINS / queries;
        int64_t key = 0;
#define EACH(bfloat16)                                                                   \
    for (; key < run.count; key += key + keys <= run.count ? keys : 1) {                 \
        if (mixing && key + keys <= run.count)                                           \
            NAME(mix)(l, mixed, score, &run, key, queries, CHAINS, bfloat16);           \
        else if (mixing) NAME(mix)(l, mixed, score, &run, key, queries, 1, bfloat16);    \
        else if (key + keys <= run.count)                                                \
            NAME(dots)(l, q, score, &run, key, queries, CHAINS / queries, bfloat16);    \
        else NAME(dots)(l, q, score, &run, key, queries, 1, bfloat16);                   \
    }
        if (run.bfloat16) EACH(1) else EACH(0)
#undef EACH
        from += run.count;
    }
}

/* Not inlined: the copies would be most of this file's machine code. */
#define OVER(name, queries, mixing)                                                           \
    TARGET static __attribute__((noinline)) void NAME(name)(const struct look *l, int64_t query, \
                                                            int64_t from, int64_t end) {      \
        NAME(over)(l, query, queries, from, end, mixing);                                     \
    }
OVER(score_one, 1, 0)
OVER(score_all, QUERIES, 0)
OVER(mix_one, 1, 1)
OVER(mix_all, QUERIES, 1)
#undef OVER

/* Process one group of QUERIES, or fewer, over the positions of one tile. */
TARGET INLINE void NAME(group)(const struct look *l, int64_t first, int64_t from, int64_t end,
                               int mixing) {
    void (*const one)(const struct look *, int64_t, int64_t, int64_t) =
        mixing ? NAME(mix_one) : NAME(score_one);
    const int64_t count = l->count - first < QUERIES ? l->count - first : QUERIES;
    const int64_t last = first + count - 1;
    int64_t low = l->from[last], high = l->end[first]; /* the positions that all of them see */
    if (count < QUERIES || low >= high || l->recent[first] != l->recent[last])
        low = high = INT64_MAX;
    for (int64_t n = first; n <= last; ++n) {
        const int64_t stop = l->end[n] < low ? l->end[n] : low;
        one(l, n, from > l->from[n] ? from : l->from[n], end < stop ? end : stop);
    }
    if (low == INT64_MAX) return;
    (mixing ? NAME(mix_all) : NAME(score_all))(l, first, from > low ? from : low,
                                               end < high ? end : high);
    for (int64_t n = first; n <= last; ++n)
        one(l, n, from > high ? from : high, end < l->end[n] ? end : l->end[n]);
}

/* Replace scores by weights 2^(factor (score - largest)); return the sum of the weights. */
TARGET INLINE float NAME(soften)(float *score, int64_t count, float factor) {
    const float none = -__builtin_inff();
    for (int64_t k = count; k % LANES; ++k) score[k] = none;
    vf top = NAME(all)(none), sum = {0};
    for (int64_t k = 0; k < count; k += LANES) {
        const vf s = NAME(load)((const char *)(score + k), LANES, 0);
        top = NAME(pick)(s > top, s, top);
    }
    float lane[LANES], largest = none;
    memcpy(lane, &top, sizeof lane);
    for (int i = 0; i < LANES; ++i) largest = lane[i] > largest ? lane[i] : largest;
    for (int64_t k = 0; k < count; k += LANES) {
        const vf s = NAME(load)((const char *)(score + k), LANES, 0);
        const vf weight = NAME(exp2)((s - largest) * factor);
        NAME(store)((char *)(score + k), weight, LANES, 0);
        sum += weight;
    }
    return NAME(total)(sum);
}

TARGET static void NAME(attend)(const struct look *l) {
    const struct attention *c = l->call;
    const int64_t last = l->count - 1, size = c->bfloat16 ? 2 : 4;
    const int64_t row = l->begin + l->first, place = l->head * l->size;
    for (int64_t n = 0; n < l->count; ++n)
        for (int64_t i = 0; i < l->row; i += LANES) {
            const int64_t left = l->size - i > 0 ? l->size - i : 0;
            const char *q = c->q + ((row + n) * c->width + place + i) * size;
            const vf x = c->bfloat16 ? NAME(load)(q, left, 1) : NAME(load)(q, left, 0);
            NAME(store)((char *)(l->q + n * l->row + i), x, LANES, 0);
            NAME(store)((char *)(l->mixed + n * l->row + i), (vf){0}, LANES, 0);
        }
    for (int64_t from = l->from[0]; from < l->end[last]; from += TILE)
        for (int64_t first = 0; first < l->count; first += QUERIES)
            NAME(group)(l, first, from, from + TILE, 0);
    const float factor = LOG2_E / __builtin_sqrtf((float)l->size);
    float share[SIDE_BY_SIDE];
    for (int64_t n = 0; n < l->count; ++n)
        share[n] = (float)c->alpha /
                   NAME(soften)(l->score + n * l->keys, l->end[n] - l->from[n], factor);
    for (int64_t from = l->from[0]; from < l->end[last]; from += TILE)
        for (int64_t first = 0; first < l->count; first += QUERIES)
            NAME(group)(l, first, from, from + TILE, 1);
    for (int64_t n = 0; n < l->count; ++n)
        for (int64_t i = 0; i < l->size; i += LANES) {
            const int64_t left = l->size - i, at = ((row + n) * c->width + place + i) * size;
            const vf mixed = NAME(load)((const char *)(l->mixed + n * l->row + i), LANES, 0);
            const vf x = c->bfloat16 ? NAME(load)(c->residual + at, left, 1)
                                     : NAME(load)(c->residual + at, left, 0);
            const vf out = FMA(mixed, NAME(all)(share[n]), x);
            if (c->bfloat16) NAME(store)(c->out + at, out, left, 1);
            else NAME(store)(c->out + at, out, left, 0);
        }
}
