/* Attention of a decoder's step: checks, and the threads' shares of the queries. */

_Static_assert(sizeof(struct decoder_attention) == 19 * 8, "Python packs 19 fields of 8 bytes");

static void (*const ATTEND_ROWS[])(const struct decoder_attention *, int64_t, float *) = {
    attend_rows_baseline,
#if defined(__x86_64__)
    attend_rows_avx2,
    attend_rows_avx512,
#endif
};

static int check_decoder_attention(const struct decoder_attention *c) {
    for (int64_t query = 0; query < c->queries; ++query) {
        const int64_t count = c->counts[query], limit = c->limits[query];
        if (count < 0) return BAD_KEY;
        if (c->shares && rows_of(c, query) > c->share_columns) return BAD_KEY;
        if (!c->index) {
            if (count > limit) return BAD_KEY;
            continue;
        }
        if (count > c->most) return BAD_KEY;
        const int32_t *index = c->index + query * c->most;
        for (int64_t row = 0; row < count; ++row)
            if (index[row] < 0 || index[row] >= limit) return BAD_KEY;
    }
    return OK;
}

struct decoder_attention_share {
    const struct decoder_attention *call;
    void (*attend)(const struct decoder_attention *, int64_t, float *);
    float *scratch;
    int64_t floats; /* of each thread's scratch */
    _Atomic int64_t next, members;
};

static void take_queries(void *data) {
    struct decoder_attention_share *share = data;
    const int64_t member = atomic_fetch_add_explicit(&share->members, 1, memory_order_relaxed);
    float *scratch = share->scratch + member * share->floats;
    for (;;) {
        const int64_t query = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);
        if (query >= share->call->queries) return;
        share->attend(share->call, query, scratch);
    }
}

/* Compute the attention of a decoder's step. Writes nothing unless it returns OK. */
EXPORT int sru_decoder_attention(const struct decoder_attention *c) {
    const int bad = check_decoder_attention(c);
    if (bad) return bad;
    struct decoder_attention_share share = {.call = c, .attend = ATTEND_ROWS[current()]};
    int64_t rows = 0, most = 0;
    for (int64_t query = 0; query < c->queries; ++query) {
        const int64_t count = rows_of(c, query);
        rows += count;
        if (count > most) most = count;
    }
    share.floats = padded(most);
    const int few = c->threads < 2 || !run_parallel || rows < ATTENTION_SERIAL / c->width;
    share.scratch = malloc((few ? 1 : c->threads) * share.floats * sizeof(float));
    if (!share.scratch && share.floats) return NO_MEMORY;
    if (few) take_queries(&share);
    else run_parallel(take_queries, &share, (unsigned)c->threads, 0);
    free(share.scratch);
    return OK;
}
