/* A matrix product: any thread computes any block of rows of any panel.
 *
 * A span of blocks visits all panels before the next span begins, and a panel all blocks of a span
 * before the next panel, so that its weights are read from a cache.
 */

enum { MATRIX_SERIAL = 1 << 21 }; /* fewest multiplications worth waking threads (20 us) */
enum { SPAN = 4 };                /* blocks */

static void (*const BLOCK[])(const struct matrix *, int64_t, int64_t, int64_t) = {
    block_baseline,
#if defined(__x86_64__)
    block_avx2,
    block_avx512,
#endif
};

struct matrix_share {
    const struct matrix *matrix;
    void (*block)(const struct matrix *, int64_t, int64_t, int64_t);
    _Atomic int64_t next;
};

static void take_blocks(void *data) {
    struct matrix_share *share = data;
    const struct matrix *m = share->matrix;
    const int64_t blocks = (m->rows + MAX_SEQUENCES - 1) / MAX_SEQUENCES;
    const int64_t spans = (blocks + SPAN - 1) / SPAN, in_span = SPAN * m->product.panels;
    for (;;) {
        const int64_t part = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);
        if (part >= spans * in_span) return;
        const int64_t block = part / in_span * SPAN + part % SPAN;
        const int64_t first = block * MAX_SEQUENCES, left = m->rows - first;
        if (left <= 0) continue;
        share->block(m, first, left < MAX_SEQUENCES ? left : MAX_SEQUENCES, part % in_span / SPAN);
    }
}

static void multiply_matrix(const struct matrix *m, int64_t threads) {
    struct matrix_share share = {.matrix = m, .block = BLOCK[current()]};
    const int64_t work = m->rows * m->product.inputs * m->product.outputs;
    if (threads < 2 || !run_parallel || work < MATRIX_SERIAL) take_blocks(&share);
    else run_parallel(take_blocks, &share, (unsigned)threads, 0);
}

/* The arguments of a product, in the order in which `product.py` packs them. */
struct matrix_call {
    const char *weight;
    const float *bias, *in;
    float *out;
    int64_t rows, inputs, outputs, threads;
};

_Static_assert(sizeof(struct matrix_call) == 8 * 8, "Python packs 8 fields of 8 bytes");

/* out = in * weight + bias. */
EXPORT int sru_product(const struct matrix_call *c) {
    const struct matrix m = {c->in, c->out, laid_out(c->weight, c->bias, c->inputs, c->outputs, 1),
                             c->rows};
    multiply_matrix(&m, c->threads);
    return OK;
}
