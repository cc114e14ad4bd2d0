/* A matrix product: any thread computes any block of rows of any panel. */

enum { MATRIX_SERIAL = 1 << 21 }; /* fewest multiplications worth waking threads (20 us) */

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
    int64_t rows; /* of a block */
    int64_t blocks;
    _Atomic int64_t next;
};

static void take_blocks(void *data) {
    struct matrix_share *share = data;
    const struct matrix *m = share->matrix;
    const int64_t parts = share->blocks * m->product.panels;
    for (;;) {
        const int64_t part = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);
        if (part >= parts) return;
        const int64_t first = part / m->product.panels * share->rows, left = m->rows - first;
        share->block(m, first, left < share->rows ? left : share->rows,
                     part % m->product.panels);
    }
}

static void multiply_matrix(const struct matrix *m, int64_t threads) {
    struct matrix_share share = {.matrix = m, .block = BLOCK[current()], .rows = MAX_SEQUENCES};
    share.blocks = (m->rows + share.rows - 1) / share.rows;
    const int64_t work = m->rows * m->product.inputs * m->product.outputs;
    if (threads < 2 || !run_parallel || work < MATRIX_SERIAL) take_blocks(&share);
    else run_parallel(take_blocks, &share, (unsigned)threads, 0);
}

struct matrix_call {
    const char *weight;
    const float *bias, *in;
    float *out;
    int64_t rows, inputs, outputs, in_stride, out_stride, threads;
};

EXPORT int sru_product(const struct matrix_call *c) {
    const struct matrix m = {c->in, c->out, laid_out(c->weight, c->bias, c->inputs, c->outputs, 1),
                             c->rows, c->in_stride, c->out_stride};
    multiply_matrix(&m, c->threads);
    return OK;
}
