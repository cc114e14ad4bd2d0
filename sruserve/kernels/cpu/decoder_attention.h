/* Attention of a decoder's step, with the vectors of one instruction set: each query reads rows of
 * its own, wherever they are.
 *
 * A score is one chain of FMAs over a head's features, and a mixed value is one chain over the rows
 * in their order. So the bits of a query do not depend on the other queries.
 */
#ifndef DECODER_ATTENTION_TYPES
#define DECODER_ATTENTION_TYPES

/* The arguments of `cpu_decoder_attention`, in the order in which it packs them. */
struct decoder_attention {
    const float *q;
    const int64_t *addresses, *limits, *counts; /* of each query's table; rows in it, and seen */
    const int32_t *index;                       /* NULL: the first rows of the table */
    const float *own, *additive;                /* NULL: no row of its own; a dot product */
    float *out, *shares;                        /* shares: NULL: not asked for */
    int64_t queries, width, heads, columns, keys, values, most, share_columns, threads;
    double scale;
};

static inline int64_t rows_of(const struct decoder_attention *c, int64_t query) {
    return c->counts[query] + (c->own != NULL);
}

/* Return row `row` of those that a query sees. */
static inline const float *row_of(const struct decoder_attention *c, int64_t query, int64_t row) {
    if (row == c->counts[query]) return c->own + query * c->columns;
    const int64_t place = c->index ? c->index[query * c->most + row] : row;
    return (const float *)c->addresses[query] + place * c->columns;
}
#endif

/* Return the score of a key of `size` features. */
TARGET INLINE float NAME(key_score)(const float *q, const float *key, const float *v,
                                    int64_t size) {
    vf sum = {0};
    for (int64_t i = 0; i < size; i += LANES) {
        const int64_t left = size - i;
        const vf x = NAME(load)((const char *)(q + i), left, 0);
        const vf y = NAME(load)((const char *)(key + i), left, 0);
        if (!v) sum = FMA(x, y, sum);
        else sum = FMA(NAME(load)((const char *)(v + i), left, 0), NAME(tanh)(x + y), sum);
    }
    return NAME(total)(sum);
}

/* Compute one query. score: room for its rows, rounded up to the widest vector. */
TARGET static void NAME(attend_rows)(const struct decoder_attention *c, int64_t query,
                                     float *score) {
    const int64_t count = rows_of(c, query), size = c->width / c->heads;
    float *shares = c->shares ? c->shares + query * c->share_columns : NULL;
    if (shares) memset(shares, 0, c->share_columns * sizeof(float));
    for (int64_t head = 0; head < c->heads; ++head) {
        const float *q = c->q + query * c->width + head * size;
        float *out = c->out + query * c->width + head * size;
        if (!count) {
            memset(out, 0, size * sizeof(float));
            continue;
        }
        for (int64_t row = 0; row < count; ++row)
            score[row] = NAME(key_score)(q, row_of(c, query, row) + c->keys + head * size,
                                         c->additive, size);
        const float share = 1.0f / NAME(soften)(score, count, LOG2_E * (float)c->scale);
        for (int64_t i = 0; i < size; i += LANES) {
            const int64_t left = size - i, at = c->values + head * size + i;
            vf sum = {0};
            for (int64_t row = 0; row < count; ++row) {
                const vf value = NAME(load)((const char *)(row_of(c, query, row) + at), left, 0);
                sum = FMA(NAME(all)(score[row]), value, sum);
            }
            NAME(store)((char *)(out + i), sum * share, left, 0);
        }
        if (!shares) continue;
        const float part = share / (float)c->heads;
        for (int64_t row = 0; row < count; ++row) shares[row] += score[row] * part;
    }
}
