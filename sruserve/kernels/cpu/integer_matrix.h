/* The product of a matrix and a weight of int8: its rows become bytes, then integers are summed.
 *
 * Many rows: a thread takes blocks of rows, and multiplies each by the whole weight. Few rows: they
 * become bytes first, and a thread takes panels of columns.
 */

enum { INTEGER_SERIAL = 1 << 22 }; /* fewest multiplications worth waking threads (20 us) */
enum { PANEL_GROUPS = 4 };         /* groups of a panel */
enum { MAX_INTEGER_INPUTS = 1 << 16 }; /* the sums of more inputs may exceed an integer */

static void (*const QUANTIZE[])(const float *, uint8_t *, float *, int64_t, int64_t, int64_t) = {
    quantize_baseline,
#if defined(__x86_64__)
    quantize_avx2,
    quantize_avx512,
#endif
};

/* Bytes of a row of the work memory: whole vectors. */
static int64_t byte_stride(int64_t inputs) { return (inputs + GROUP - 1) / GROUP * GROUP; }

/* Floats of work memory for `rows` rows: their scales and their bytes. */
static int64_t integer_work(int64_t rows, int64_t inputs) {
    return rows * (1 + byte_stride(inputs) / (int64_t)sizeof(float));
}

static void (*integers(void))(const struct integer_tile *) {
#if defined(__x86_64__)
    static _Atomic int vnni = -1;
    int has = atomic_load_explicit(&vnni, memory_order_relaxed);
    if (has < 0) {
        has = supported(2) && __builtin_cpu_supports("avx512vnni");
        atomic_store_explicit(&vnni, has, memory_order_relaxed);
    }
    if (current() == 2 && has) return integers_vnni;
    if (current()) return integers_avx2;
#endif
    return integers_baseline;
}

struct integer_share {
    struct integer_tile tile; /* of all rows and columns */
    const float *floats;
    uint8_t *bytes;
    float *scales;
    void (*run)(const struct integer_tile *);
    int64_t rows, block; /* block: rows of a part; 0: parts are panels */
    _Atomic int64_t next;
};

static void quantize_rows(const struct integer_share *share, int64_t first, int64_t rows) {
    const int64_t inputs = share->tile.weight->inputs, stride = share->tile.in_stride;
    QUANTIZE[current()](share->floats + first * inputs, share->bytes + first * stride,
                        share->scales + first, rows, inputs, stride);
}

static void take_integers(void *data) {
    struct integer_share *share = data;
    const struct integer_weight *w = share->tile.weight;
    const int64_t groups = (w->outputs + GROUP - 1) / GROUP;
    for (;;) {
        const int64_t part = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);
        struct integer_tile tile = share->tile;
        if (share->block) {
            const int64_t first = part * share->block, left = share->rows - first;
            if (left <= 0) return;
            tile.rows = left < share->block ? left : share->block;
            quantize_rows(share, first, tile.rows);
            tile.in += first * tile.in_stride;
            tile.in_scale += first;
            tile.out += first * w->outputs;
            for (int64_t group = 0; group < groups; group += PANEL_GROUPS) {
                tile.first = group * GROUP;
                tile.groups = groups - group < PANEL_GROUPS ? groups - group : PANEL_GROUPS;
                share->run(&tile);
            }
        } else {
            const int64_t group = part * PANEL_GROUPS, left = groups - group;
            if (left <= 0) return;
            tile.first = group * GROUP;
            tile.groups = left < PANEL_GROUPS ? left : PANEL_GROUPS;
            share->run(&tile);
        }
    }
}

/* out = in * weight + bias. work: `integer_work` floats. */
static void multiply_integers(const struct integer_weight *w, const float *in, float *out,
                              int64_t rows, float *work, int64_t threads) {
    const int64_t stride = byte_stride(w->inputs);
    uint8_t *bytes = (uint8_t *)(work + rows);
    struct integer_share share = {
        .tile = {w, bytes, work, out, stride, rows, 0, 0},
        .floats = in,
        .bytes = bytes,
        .scales = work,
        .run = integers(),
        .rows = rows,
    };
    const int64_t parts = 4 * threads; /* so that a late thread does little */
    const int alone = threads < 2 || !run_parallel || rows * w->inputs * w->outputs < INTEGER_SERIAL;
    if (alone || rows >= 6 * parts) {
        const int64_t even = alone ? MAX_SEQUENCES : (rows / parts + 5) / 6 * 6;
        share.block = even < MAX_SEQUENCES ? even : MAX_SEQUENCES;
    } else {
        quantize_rows(&share, 0, rows);
    }
    if (alone) take_integers(&share);
    else run_parallel(take_integers, &share, (unsigned)threads, 0);
}

/* The arguments of a product, in the order in which `integer_product.py` packs them. */
struct integer_call {
    struct integer_weight weight;
    const float *in;
    float *out, *work;
    int64_t rows, work_size, threads; /* work_size: floats */
};

_Static_assert(sizeof(struct integer_call) == 12 * 8, "Python packs 12 fields of 8 bytes");

/* out = in * weight + bias. Writes nothing unless it returns OK. */
EXPORT int sru_integer_product(const struct integer_call *c) {
    if (c->weight.inputs > MAX_INTEGER_INPUTS ||
        integer_work(c->rows, c->weight.inputs) > c->work_size)
        return BAD_WORK;
    multiply_integers(&c->weight, c->in, c->out, c->rows, c->work, c->threads);
    return OK;
}
